"""Publishes asv's pages as ``rocattn site`` does: into a staged folder that then replaces the old pages."""

from rocattn_profiling.base.files import StagedFiles
from rocattn_profiling.site.asv import pages


def publish(store, history, out, **options):
    """Publish into ``out``; the old pages stay when asv fails."""
    with StagedFiles() as staging:
        outcome = pages.publish(store, history, out, staging.folder(out), **options)
        if outcome.published:
            staging.commit()
    return outcome
