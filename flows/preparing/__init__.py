"""Everything a run needs, made and checked before anything is asked: settings, suites, plan, askers, dataset."""
