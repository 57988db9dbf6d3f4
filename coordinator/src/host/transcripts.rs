//! The transcripts of providers, from their arrival to the valuation of their round. They are aids: one that is
//! lost, at a restart for example, costs the coordinator a valuation of its own, and its provider the precedence
//! before records without one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use florin_protocol::{Address, Digest, NodeSigner, RoundNumber, TaskId};
use florin_store::{BlobError, BlobWriter};

/// Providers of one round whose transcripts are read. The records of further ones count as without.
pub(crate) const TRANSCRIPTS_PER_ROUND_MAX: usize = 4;
/// Tasks whose last round is remembered. Beyond them the oldest round gives way.
const ROUNDS_MAX: usize = 4_096;
/// Transcripts on disk, each in an open file, and the bytes of all. Beyond them the oldest round's give way.
const HELD_MAX: usize = 256;
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

/// The last round of a task that had a transcript.
#[derive(Debug)]
struct HeldRound {
    round: RoundNumber,
    /// The number of its first transcript, of all rounds.
    arrival: u64,
    /// The transcripts that nothing reads at present, in the order of their arrival.
    transcripts: Vec<HeldTranscript>,
    /// Their providers, and those of transcripts that were read: of each the first transcript counts.
    providers: BTreeSet<Address>,
    /// Whether a transcript was read to value the round by it: there is no second try at the draws.
    is_tried: bool,
    /// Whether the round has a result. It needs no further transcript.
    is_valued: bool,
}

#[derive(Debug, Default)]
struct HeldRounds {
    rounds: BTreeMap<TaskId, HeldRound>,
    arrivals: u64,
}

/// The transcripts that wait for the valuation of their rounds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Transcripts(Arc<Mutex<HeldRounds>>);

impl Transcripts {
    /// Keeps the first transcript of a provider for a round: each further one would be another try at the draws.
    /// A later round of the task ends the wait of earlier ones.
    pub(crate) fn insert(&self, task: TaskId, round: RoundNumber, transcript: HeldTranscript) {
        let mut held = self.lock();
        let Some(own) = held.round(task, round) else { return };
        let is_full = own.providers.len() >= TRANSCRIPTS_PER_ROUND_MAX;
        if own.is_valued || is_full || !own.providers.insert(transcript.provider) {
            return;
        }
        own.transcripts.push(transcript);
        held.make_room();
    }

    /// The transcripts of a round, by one of which it can be valued. Empty at a second call for a round that had some.
    pub(super) fn take_first(&self, task: TaskId, round: RoundNumber) -> Vec<HeldTranscript> {
        let mut held = self.lock();
        let Some(own) = held.known(task, round).filter(|own| !own.is_tried) else {
            return Vec::new();
        };
        let taken = std::mem::take(&mut own.transcripts);
        own.is_tried = !taken.is_empty();
        taken
    }

    /// The transcripts of a round that came since, or were returned.
    pub(super) fn take_later(&self, task: TaskId, round: RoundNumber) -> Vec<HeldTranscript> {
        let mut held = self.lock();
        let own = held.known(task, round);
        own.map(|own| std::mem::take(&mut own.transcripts)).unwrap_or_default()
    }

    /// Returns transcripts that another attempt at the valuation reads, before those that came since.
    pub(super) fn put_back(&self, task: TaskId, round: RoundNumber, taken: Vec<HeldTranscript>) {
        let mut held = self.lock();
        if let Some(own) = held.known(task, round) {
            own.transcripts.splice(..0, taken);
        }
    }

    /// The round has a result: it needs no transcript any more.
    pub(super) fn close(&self, task: TaskId, round: RoundNumber) {
        let mut held = self.lock();
        if let Some(own) = held.round(task, round) {
            own.is_valued = true;
            own.transcripts.clear();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HeldRounds> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HeldRounds {
    fn known(&mut self, task: TaskId, round: RoundNumber) -> Option<&mut HeldRound> {
        self.rounds.get_mut(&task).filter(|own| own.round == round)
    }

    /// The place of a round, unless its task has had a later one.
    fn round(&mut self, task: TaskId, round: RoundNumber) -> Option<&mut HeldRound> {
        let known = self.rounds.get(&task).map(|own| own.round);
        if known.is_some_and(|known| known > round) {
            return None;
        }
        if known != Some(round) {
            self.arrivals += 1;
            let own = HeldRound {
                round,
                arrival: self.arrivals,
                transcripts: Vec::new(),
                providers: BTreeSet::new(),
                is_tried: false,
                is_valued: false,
            };
            self.rounds.insert(task, own);
        }
        if self.rounds.len() > ROUNDS_MAX {
            self.forget_oldest();
        }
        self.known(task, round)
    }

    /// Removes the transcripts of the oldest rounds beyond the limits.
    fn make_room(&mut self) {
        loop {
            let all = self.rounds.values().flat_map(|own| &own.transcripts);
            let (count, bytes) =
                all.fold((0, 0), |(count, sum), one| (count + 1, sum + one.bytes.bytes()));
            if count <= HELD_MAX && bytes <= HELD_BYTES_MAX {
                return;
            }
            let holding = self.rounds.values_mut().filter(|own| !own.transcripts.is_empty());
            if let Some(oldest) = holding.min_by_key(|own| own.arrival) {
                oldest.transcripts.clear();
            }
        }
    }

    fn forget_oldest(&mut self) {
        let oldest = self.rounds.iter().min_by_key(|(_, own)| own.arrival).map(|(task, _)| *task);
        if let Some(task) = oldest {
            self.rounds.remove(&task);
        }
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
        let (first, later) = (Transcripts::take_first, Transcripts::take_later);
        let count = |take: Take, task, round| take(&transcripts, task, RoundNumber(round)).len();
        insert(other, 1, 7);
        assert_eq!(count(first, task, 1), 0);
        for record in 1..=3 {
            insert(task, 1, record);
        }
        insert(task, 1, 1);
        assert_eq!(count(first, task, 2), 0);
        let mut taken = transcripts.take_first(task, RoundNumber(1));
        assert_eq!((taken.len(), taken[0].record()), (3, Digest([1; 32])));
        assert_eq!(taken[0].read().unwrap(), [1; 9]);
        // There is no second try at the draws, of a round or of a provider.
        insert(task, 1, 1);
        insert(task, 1, 4);
        insert(task, 1, 5);
        assert_eq!(count(first, task, 1), 0);
        transcripts.put_back(task, RoundNumber(1), taken);
        let again: Vec<u8> = transcripts
            .take_later(task, RoundNumber(1))
            .iter()
            .map(|held| held.record().0[0])
            .collect();
        assert_eq!(again, [1, 2, 3, 4], "of four providers, and in their order");
        assert_eq!(count(later, task, 1), 0);
        // A round that was never valued gives way to the next one of its task, and a provider has one place.
        insert(other, 2, 8);
        assert_eq!((count(first, other, 1), count(later, other, 1)), (0, 0));
        insert(other, 1, 9);
        insert(other, 2, 8);
        assert_eq!(count(first, other, 2), 1);
        // A round with a result needs none.
        insert(other, 2, 7);
        transcripts.close(other, RoundNumber(2));
        insert(other, 2, 6);
        assert_eq!(count(later, other, 2), 0);
    }

    #[test]
    fn the_oldest_rounds_give_way() {
        let folder = tempfile::tempdir().unwrap();
        let blobs = BlobStore::open(folder.path()).unwrap();
        let transcripts = Transcripts::default();
        let task = |at: usize| {
            let mut id = [0; 32];
            // Ids do not ascend with the age of their rounds.
            id[..8].copy_from_slice(&(at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
            TaskId(id)
        };
        for at in 0..=HELD_MAX {
            transcripts.insert(task(at), RoundNumber(1), transcript(&blobs, 1, &[1]));
        }
        let left = |at| transcripts.take_later(task(at), RoundNumber(1)).len();
        assert_eq!([left(0), left(1), left(HELD_MAX)], [0, 1, 1]);
        for at in 0..=ROUNDS_MAX {
            transcripts.close(task(at), RoundNumber(2));
        }
        assert_eq!(transcripts.lock().rounds.len(), ROUNDS_MAX);
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
