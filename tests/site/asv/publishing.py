"""Publishes asv's pages as ``rocattn site`` does: into a staged folder that then replaces the old pages."""

from rocattn_profiling.base.files import StagedFiles
from rocattn_profiling.site import asv_pages


def publish(store, history, out):
    """Publish into ``out``; the old pages stay when asv fails."""
    with StagedFiles() as staging:
        outcome = asv_pages.publish(store, history, out, staging.folder(out))
        if outcome.published:
            staging.commit()
    return outcome
