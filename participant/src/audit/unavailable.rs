//! Lines of an audit whose data the coordinator did not give: a later request may succeed.

use super::Auditor;
use florin_protocol::Mismatch;

impl Auditor<'_> {
    /// Whether a line of the last audited round differs only because its data is not available.
    pub(crate) fn is_unavailable(&self, found: &Mismatch) -> bool {
        self.unavailable.borrow().contains(&found.line)
    }

    /// Notes a line whose data is not available.
    pub(super) fn unavailable(
        &self,
        line: impl Into<String>,
        reported: &dyn ToString,
        why: &dyn ToString,
    ) -> Mismatch {
        let found = Mismatch::new(line, reported, why);
        self.unavailable.borrow_mut().insert(found.line.clone());
        found
    }

    /// Releases the cached blobs; a later audit fetches them again.
    pub(crate) fn release_blobs(&mut self) {
        self.models.replace([]);
        self.updates.replace([]);
        self.baseline_rounds.values_mut().for_each(|rows| *rows = None);
    }
}
