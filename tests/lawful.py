"""Winners of a search that is called by itself; answers of the verbs are under the laws anyway."""

from meshwright.audit.laws import violations
from meshwright.train.price import candidate, candidate_facts


def assert_lawful(problem, found):
    """Assert that the full price of what a search found breaks no law of conservation."""
    priced = candidate(problem, found.strategy, found.plan_options)
    facts = candidate_facts(problem, priced, claims_to_fit=True)
    assert not violations([facts])
