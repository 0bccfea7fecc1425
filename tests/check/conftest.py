"""The scripts are run by the tests; pytest itself must not import them."""

collect_ignore_glob = ["gallery/*"]
