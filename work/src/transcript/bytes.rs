//! The bytes of a transcript: numbers in `f64` and states of trainings, one after the other. The valuation
//! knows how many it asks for, so there are no names and no lengths, except those of states.

use super::TranscriptError;

/// Longest transcript in bytes.
pub const TRANSCRIPT_BYTES_MAX: usize = 64 << 20;

/// Writes a transcript, unless it becomes too long or has an evaluation that it cannot have.
pub(super) struct Writer(Option<Vec<u8>>);

impl Default for Writer {
    fn default() -> Self {
        Self(Some(Vec::new()))
    }
}

impl Writer {
    pub(super) fn numbers<'a>(&mut self, numbers: impl IntoIterator<Item = &'a f64>) {
        for number in numbers {
            self.append(&number.to_le_bytes());
        }
    }

    pub(super) fn state(&mut self, state: &[u8]) {
        self.append(&(state.len() as u64).to_le_bytes());
        self.append(state);
    }

    /// Whether there will be a transcript.
    pub(super) const fn is_active(&self) -> bool {
        self.0.is_some()
    }

    /// The round has no transcript.
    pub(super) fn give_up(&mut self) {
        self.0 = None;
    }

    fn append(&mut self, bytes: &[u8]) {
        if let Some(written) = &mut self.0 {
            if bytes.len() > TRANSCRIPT_BYTES_MAX - written.len() {
                self.0 = None;
            } else {
                written.extend_from_slice(bytes);
            }
        }
    }

    pub(super) fn finish(self) -> Option<Vec<u8>> {
        self.0
    }
}

/// Reads a transcript.
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The next `count` numbers, all finite.
    pub(super) fn numbers(
        &mut self,
        what: &'static str,
        count: usize,
    ) -> Result<Vec<f64>, TranscriptError> {
        let length = count.checked_mul(size_of::<f64>());
        let bytes = length.and_then(|length| self.0.split_off(..length));
        let bytes = bytes.ok_or(TranscriptError::Truncated(what))?;
        let numbers = bytes.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes));
        let numbers: Vec<f64> = numbers.collect();
        match numbers.iter().position(|number| !number.is_finite()) {
            None => Ok(numbers),
            Some(at) => {
                let why = format!("number {at} is {}", numbers[at]);
                Err(TranscriptError::Invalid { what, why })
            }
        }
    }

    /// The bytes of the next state.
    pub(super) fn state(&mut self, what: &'static str) -> Result<&'a [u8], TranscriptError> {
        let length = self.0.split_off(..size_of::<u64>()).and_then(|bytes| bytes.first_chunk());
        let length = length.and_then(|length| usize::try_from(u64::from_le_bytes(*length)).ok());
        let bytes = length.and_then(|length| self.0.split_off(..length));
        bytes.ok_or(TranscriptError::Truncated(what))
    }

    pub(super) const fn finish(&self) -> Result<(), TranscriptError> {
        match self.0.len() {
            0 => Ok(()),
            bytes => Err(TranscriptError::TrailingBytes(bytes)),
        }
    }
}
