"""What ``meshwright study`` finds by the entry point group ``meshwright.studies``."""

from __future__ import annotations

from collections.abc import Mapping

from meshwright_papers.studies.registry import StudyResult, studies
from meshwright_papers.studies.writing import document, study_markdown, table_csv, table_svg


class Collection:
    """All studies of this distribution: their titles, their answers, and these as files."""

    @property
    def titles(self) -> Mapping[str, str]:
        """Titles by the names on the command line."""
        return {name: studies[name].title for name in studies}

    def run(self, name: str) -> StudyResult:
        """Return what a study finds."""
        return studies[name].run()

    def files(self, results: Mapping[str, StudyResult], *, one_document: bool) -> dict[str, str]:
        """Return the tables, charts and verdicts of studies: the text of each file by its path.

        Parameters
        ----------
        one_document
            Whether all verdicts go into ``studies.md`` and tables into a folder ``studies``, rather
            than each study into a document of its own name.
        """
        found: dict[str, str] = {}
        folder = "studies/" if one_document else ""
        for result in results.values():
            for table in result.tables:
                found[f"{folder}{table.name}.csv"] = table_csv(table)
                if chart := table_svg(table):
                    found[f"{folder}{table.name}.svg"] = chart
        entries = {
            name: (studies[name].title, studies[name].source, result)
            for name, result in results.items()
        }
        if one_document:
            return {**found, "studies.md": document(entries)}
        sections = {f"{name}.md": study_markdown(name, *entry) for name, entry in entries.items()}
        return {**found, **sections}


collection = Collection()
