//! The transcripts of providers, from their arrival to the valuation of their round. They are aids: one that is
//! lost, at a restart for example, costs the coordinator a valuation of its own and no provider its pay.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use florin_protocol::{Address, Digest, NodeSigner, RoundNumber, TaskId};
use florin_store::{BlobError, BlobWriter};

/// Transcripts of one round. The records of further ones are compared with the result.
pub(crate) const TRANSCRIPTS_PER_ROUND_MAX: usize = 4;
/// Remembered tasks whose transcripts were taken.
const TRIED_TASKS_MAX: usize = 4_096;
/// Bytes of all transcripts on disk. Beyond them the oldest round's give way.
const HELD_BYTES_MAX: u64 = 1 << 30;

/// A transcript and the digest of its work record. The bytes are in a temporary file without another name.
#[derive(Debug)]
pub(crate) struct HeldTranscript {
    provider: Address,
    record: Digest,
    bytes: BlobWriter,
}

impl HeldTranscript {
    pub(crate) const fn new(provider: Address, record: Digest, bytes: BlobWriter) -> Self {
        Self { provider, record, bytes }
    }

    pub(super) const fn record(&self) -> Digest {
        self.record
    }

    pub(super) const fn provider(&self) -> Address {
        self.provider
    }

    pub(super) fn read(&mut self) -> Result<Vec<u8>, BlobError> {
        self.bytes.read_back().map(std::borrow::Cow::into_owned)
    }

    /// The seed of the replay's draws. It follows from a secret of the coordinator and from all bytes of the
    /// transcript, so that its writer cannot know it.
    pub(super) fn seed(&self, node: &NodeSigner) -> u64 {
        let asked = [self.record.0, self.bytes.digest().0].concat();
        let message = [b"florin v1 transcript draws".as_slice(), &asked].concat();
        let signature = node.sign_bytes(&message);
        let [a, b, c, d, e, f, g, h, ..] = *blake3::hash(&signature.0).as_bytes();
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }
}

#[derive(Debug, Default)]
struct HeldRounds {
    /// By the order of arrival of a round's first transcript.
    rounds: BTreeMap<u64, (TaskId, RoundNumber, Vec<HeldTranscript>)>,
    arrivals: u64,
    /// The last round of each task whose transcripts were taken to value it by one: there is no second try at
    /// the draws.
    tried: BTreeMap<TaskId, RoundNumber>,
}

/// The transcripts that wait for the valuation of their rounds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Transcripts(Arc<Mutex<HeldRounds>>);

impl Transcripts {
    /// Keeps the first transcript of a provider for a round: each further one would be another try at the draws.
    /// A later round of the task ends the wait of earlier ones.
    pub(crate) fn insert(&self, task: TaskId, round: RoundNumber, transcript: HeldTranscript) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if held.tried.get(&task).is_some_and(|tried| *tried > round) {
            return;
        }
        held.rounds.retain(|_, (own, other, _)| *own != task || *other >= round);
        let known = held.rounds.values_mut().find(|(own, ..)| *own == task);
        let is_own = |other: &HeldTranscript| other.provider == transcript.provider;
        match known {
            Some((_, other, _)) if *other != round => {}
            Some((_, _, all)) if all.iter().any(is_own) => {}
            Some((_, _, all)) if all.len() < TRANSCRIPTS_PER_ROUND_MAX => all.push(transcript),
            Some(_) => {}
            None => {
                held.arrivals += 1;
                let arrival = held.arrivals;
                held.rounds.insert(arrival, (task, round, vec![transcript]));
            }
        }
        while held.bytes() > HELD_BYTES_MAX && held.rounds.pop_first().is_some() {}
    }

    /// The transcripts of a round, by one of which it can be valued; they are held no longer. Empty at a second call for a
    /// round that had some.
    pub(super) fn take_first(&self, task: TaskId, round: RoundNumber) -> Vec<HeldTranscript> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if held.tried.get(&task).is_some_and(|tried| *tried >= round) {
            return Vec::new();
        }
        let taken = held.take(task, round);
        if !taken.is_empty() {
            held.tried.insert(task, round);
            if held.tried.len() > TRIED_TASKS_MAX {
                held.tried.pop_first();
            }
        }
        taken
    }

    /// The transcripts of a round that came since, which are held no longer.
    pub(super) fn take_later(&self, task: TaskId, round: RoundNumber) -> Vec<HeldTranscript> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take(task, round)
    }
}

impl HeldRounds {
    fn take(&mut self, task: TaskId, round: RoundNumber) -> Vec<HeldTranscript> {
        let is_own = |(own, at, _): &(TaskId, RoundNumber, _)| *own == task && *at == round;
        let found = self.rounds.iter().find(|(_, entry)| is_own(entry)).map(|(at, _)| *at);
        let taken = found.and_then(|arrival| self.rounds.remove(&arrival));
        taken.map(|(_, _, all)| all).unwrap_or_default()
    }

    fn bytes(&self) -> u64 {
        let all = self.rounds.values().flat_map(|(_, _, transcripts)| transcripts);
        all.map(|transcript| transcript.bytes.bytes()).sum()
    }
}

#[cfg(test)]
mod tests {
    use florin_store::BlobStore;

    use super::*;

    type Take = fn(&Transcripts, TaskId, RoundNumber) -> Vec<HeldTranscript>;

    fn transcript(blobs: &BlobStore, record: u8, bytes: &[u8]) -> HeldTranscript {
        let mut writer = blobs.writer(1 << 20).unwrap();
        writer.write(bytes).unwrap();
        HeldTranscript::new(Address([record; 20]), Digest([record; 32]), writer)
    }

    #[test]
    fn transcripts_wait_for_the_valuation_of_their_round() {
        let folder = tempfile::tempdir().unwrap();
        let blobs = BlobStore::open(folder.path()).unwrap();
        let (transcripts, task, other) = (Transcripts::default(), TaskId([1; 32]), TaskId([2; 32]));
        let insert = |task, round, record| {
            let held = transcript(&blobs, record, &[record; 9]);
            transcripts.insert(task, RoundNumber(round), held);
        };
        for record in 1..=6 {
            insert(task, 1, record);
        }
        insert(other, 1, 7);
        insert(task, 1, 1);
        let (first, later) = (Transcripts::take_first, Transcripts::take_later);
        let count = |take: Take, task, round| take(&transcripts, task, RoundNumber(round)).len();
        assert_eq!(count(first, task, 2), 0);
        let mut taken = transcripts.take_first(task, RoundNumber(1));
        assert_eq!(taken.len(), TRANSCRIPTS_PER_ROUND_MAX);
        assert_eq!(taken[0].record(), Digest([1; 32]));
        assert_eq!(taken[0].read().unwrap(), [1; 9]);
        // There is no second try, but a later transcript can still be paid first.
        insert(task, 1, 8);
        assert_eq!((count(first, task, 1), count(later, task, 1)), (0, 1));
        assert_eq!(count(later, task, 1), 0);
        // A round that was never valued gives way to the next one of its task.
        insert(other, 2, 8);
        assert_eq!((count(first, other, 1), count(later, other, 1)), (0, 0));
        // One that arrives late does not end the wait of the later round, and a provider has one place.
        insert(other, 1, 9);
        insert(other, 2, 8);
        let mut taken = transcripts.take_first(other, RoundNumber(2));
        assert_eq!((taken.len(), taken[0].read().unwrap()), (1, vec![8; 9]));
        // The transcripts of a round without one when it was valued are the first when they come.
        assert_eq!(count(first, other, 3), 0);
        insert(other, 3, 9);
        insert(other, 2, 7);
        assert_eq!((count(first, other, 3), count(later, other, 2)), (1, 0));
    }

    #[test]
    fn the_seed_of_the_draws_depends_on_the_secret_and_on_every_byte() {
        let folder = tempfile::tempdir().unwrap();
        let blobs = BlobStore::open(folder.path()).unwrap();
        let node = |n| NodeSigner::from_seed(&[n; 32]);
        let seed = |key, record, bytes: &[u8]| transcript(&blobs, record, bytes).seed(&node(key));
        let first = seed(1, 1, b"a");
        assert_eq!(first, seed(1, 1, b"a"));
        for other in [seed(2, 1, b"a"), seed(1, 2, b"a"), seed(1, 1, b"b")] {
            assert_ne!(first, other);
        }
    }
}
