"""Traffic-conscious routing: fewer bytes on the hottest link, and proof of how few are possible."""
