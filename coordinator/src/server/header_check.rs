//! Early validation of an update's safetensors header.

use florin_protocol::{Rejection, TaskSpec};
use florin_store::uploads::Upload;

use super::error::ApiResult;

/// Longest safetensors header, with its length prefix, that is buffered while it arrives, in bytes.
const SAFETENSORS_HEADER_BYTES_MAX: u64 = 8 + (1 << 20);

/// Validates the safetensors header of an update while its bytes arrive.
pub(super) struct HeaderCheck {
    spec: Option<Box<TaskSpec>>,
    total: u64,
    buffered: Vec<u8>,
}

impl HeaderCheck {
    /// For an update of `total` bytes whose header must fit this task.
    pub(super) fn for_update(spec: &TaskSpec, total: u64) -> Self {
        Self { spec: Some(Box::new(spec.clone())), total, buffered: Vec::new() }
    }

    /// For uploads that are validated only when complete.
    pub(super) const fn disabled() -> Self {
        Self { spec: None, total: 0, buffered: Vec::new() }
    }

    /// Inspects the next bytes; rejects a wrong header as soon as it is complete.
    pub(super) fn inspect(&mut self, bytes: &[u8]) -> Result<(), Rejection> {
        let Some(spec) = &self.spec else {
            return Ok(());
        };
        self.buffered.extend_from_slice(bytes);
        if florin_work::check_update_header(spec, &self.buffered, self.total)? {
            (self.spec, self.buffered) = (None, Vec::new());
        }
        Ok(())
    }

    /// Inspects the bytes that arrived before the connection broke.
    pub(super) fn inspect_stored(&mut self, upload: &mut Upload) -> ApiResult<()> {
        if upload.bytes() == 0 {
            return Ok(());
        }
        let first = upload.first(SAFETENSORS_HEADER_BYTES_MAX)?;
        self.inspect(&first).map_err(|rejection| {
            upload.discard();
            rejection.into()
        })
    }
}
