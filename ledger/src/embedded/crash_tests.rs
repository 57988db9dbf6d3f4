//! Power failures: thousands of images of the possible content of a disk after a power failure, and
//! the effect of a failing disk on a running chain. `FLORIN_CRASH_IMAGES` is the number of images
//! of these tests and of the coordinator's store together; `FLORIN_SEED` reproduces a run.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};

use florin_protocol::{Amount, WalletSigner};
use redb::StorageBackend;

use super::tests::{START, genesis, operator, signer, transfer};
use super::*;
use crate::api::Ledger;
use crate::state::LedgerState;

const SECTOR: usize = 512;

#[derive(Clone, Debug)]
enum DiskOperation {
    Write(u64, Vec<u8>),
    SetLen(u64),
    Sync,
    /// The writer has acknowledged that this block is durable.
    Acknowledged(u64),
}

/// A disk in memory that records its operations.
#[derive(Debug, Default)]
struct Disk {
    data: Mutex<Vec<u8>>,
    journal: Mutex<Vec<DiskOperation>>,
    /// Operations that still succeed; negative for no limit.
    budget: AtomicI64,
    failing_syncs: bool,
}

impl Disk {
    fn from_data(data: Vec<u8>) -> Arc<Self> {
        let budget = AtomicI64::new(-1);
        Arc::new(Self { data: Mutex::new(data), budget, ..Self::default() })
    }

    fn log(&self, op: DiskOperation) {
        self.journal.lock().unwrap().push(op);
    }

    fn spend(&self, kind: io::ErrorKind) -> io::Result<()> {
        match self.budget.load(Ordering::SeqCst) {
            0 => Err(kind.into()),
            left if left > 0 => {
                self.budget.fetch_sub(1, Ordering::SeqCst);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

fn write_to(data: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    data.resize(data.len().max(at + bytes.len()), 0);
    data[at..at + bytes.len()].copy_from_slice(bytes);
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.data.lock().unwrap().len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let (data, at) = (self.data.lock().unwrap(), offset as usize);
        let bytes = data.get(at..at + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(bytes);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.spend(io::ErrorKind::StorageFull)?;
        self.data.lock().unwrap().resize(len as usize, 0);
        self.log(DiskOperation::SetLen(len));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        if self.failing_syncs {
            self.spend(io::ErrorKind::Other)?;
        }
        self.log(DiskOperation::Sync);
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if !self.failing_syncs {
            self.spend(io::ErrorKind::StorageFull)?;
        }
        write_to(&mut self.data.lock().unwrap(), offset as usize, bytes);
        self.log(DiskOperation::Write(offset, bytes.to_vec()));
        Ok(())
    }
}

/// The SplitMix64 generator: the seed alone reproduces a run.
pub(super) struct CrashRng(pub(super) u64);

impl CrashRng {
    pub(super) fn below(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }
}

pub(super) fn seed() -> u64 {
    let seed = match std::env::var("FLORIN_SEED") {
        Ok(text) => text.parse().expect("FLORIN_SEED must be a number"),
        Err(_) => RandomState::new().build_hasher().finish(),
    };
    println!("FLORIN_SEED={seed}");
    seed
}

/// A possible content of the disk after a power failure at the end of `journal`: all operations
/// before the last sync, and a random part of the later ones, where a write may be torn at sector
/// boundaries.
fn image(
    base: &[u8],
    journal: &[DiskOperation],
    syncs: bool,
    dice: &mut CrashRng,
) -> (Vec<u8>, u64) {
    let (mut data, mut acknowledged, mut durable) = (base.to_vec(), 0, 0);
    for (n, op) in journal.iter().enumerate() {
        match op {
            DiskOperation::Sync if syncs => durable = n,
            DiskOperation::Acknowledged(block) => acknowledged = *block,
            _ => {}
        }
    }
    for (n, op) in journal.iter().enumerate() {
        let (keep, torn) = match n < durable {
            true => (true, false),
            false => (dice.below(2) == 0, dice.below(3) == 0),
        };
        match op {
            DiskOperation::SetLen(len) if keep => data.resize(*len as usize, 0),
            DiskOperation::Write(at, bytes) if torn => {
                for (n, sector) in bytes.chunks(SECTOR).enumerate() {
                    if dice.below(2) == 0 {
                        write_to(&mut data, *at as usize + n * SECTOR, sector);
                    }
                }
            }
            DiskOperation::Write(at, bytes) if keep => write_to(&mut data, *at as usize, bytes),
            _ => {}
        }
    }
    (data, acknowledged)
}

struct Run {
    base: Vec<u8>,
    journal: Vec<DiskOperation>,
    /// The state after each block; the first is the genesis.
    states: Vec<LedgerState>,
}

fn clock() -> LedgerClock {
    Arc::new(|| Timestamp(START))
}

fn open_writer(disk: &Arc<Disk>) -> Result<Writer, ChainError> {
    let disk: Arc<dyn StorageBackend> = Arc::<Disk>::clone(disk) as _;
    EmbeddedChain::load_from_device(LedgerFile(disk), operator(), clock()).map(|(writer, _)| writer)
}

/// Writes random blocks on a recording disk.
fn run(blocks: u64, split_commits: bool, dice: &mut CrashRng) -> Run {
    const ACCOUNTS: u64 = 6;
    let disk = Disk::from_data(Vec::new());
    let genesis = genesis(ACCOUNTS);
    let device: Arc<dyn StorageBackend> = Arc::<Disk>::clone(&disk) as _;
    drop(EmbeddedChain::create_on_device(LedgerFile(device), &genesis).unwrap());
    let base = disk.data.lock().unwrap().clone();
    disk.journal.lock().unwrap().clear();
    let mut writer = open_writer(&disk).unwrap();
    Arc::get_mut(&mut writer.store).unwrap().split_commits = split_commits;
    let mut nonces = [0; ACCOUNTS as usize];
    let mut states = vec![writer.published.read().unwrap().state.clone()];
    for block in 1..=blocks {
        let mut batch = Vec::new();
        for _ in 0..=dice.below(12) {
            let from = dice.below(ACCOUNTS);
            let to = (from + 1 + dice.below(ACCOUNTS - 1)) % ACCOUNTS;
            let nonce = &mut nonces[from as usize];
            let signed = transfer(genesis.market(), from, *nonce, to);
            batch.push(signed.verify(genesis.market()).unwrap());
            *nonce += 1;
        }
        assert!(writer.write(batch).unwrap().iter().all(Result::is_ok));
        disk.log(DiskOperation::Acknowledged(block));
        states.push(writer.published.read().unwrap().state.clone());
    }
    drop(writer);
    let journal = disk.journal.lock().unwrap().clone();
    Run { base, journal, states }
}

/// Whether an image opens to an earlier state that contains every acknowledged block.
fn check_recovery(
    data: Vec<u8>,
    acknowledged: u64,
    states: &[LedgerState],
) -> Result<Arc<Disk>, String> {
    let disk = Disk::from_data(data);
    let writer = open_writer(&disk).map_err(|error| error.to_string())?;
    let live = writer.published.read().unwrap();
    let number = live.head.number;
    if number < acknowledged || number > acknowledged + 1 {
        return Err(format!("block {acknowledged} was acknowledged, the chain ends at {number}"));
    }
    if live.state != states[number as usize] {
        return Err(format!("the state does not equal the state after block {number}"));
    }
    drop(live);
    drop(writer);
    Ok(disk)
}

/// Opens many crash images of one run; returns the errors.
fn failing_images(images: u64, split_commits: bool, syncs: bool, seed: u64) -> Vec<String> {
    let mut dice = CrashRng(seed);
    let run = run(24, split_commits, &mut dice);
    let mut fallen = Vec::new();
    for n in 0..images {
        let cut = dice.below(run.journal.len() as u64 + 1) as usize;
        let (data, acknowledged) = image(&run.base, &run.journal[..cut], syncs, &mut dice);
        let verdict = check_recovery(data.clone(), acknowledged, &run.states).and_then(|disk| {
            if n % 4 != 0 {
                return Ok(());
            }
            // A second power failure during the repair after the first.
            let repair = disk.journal.lock().unwrap().clone();
            let cut = dice.below(repair.len() as u64 + 1) as usize;
            let (data, _) = image(&data, &repair[..cut], syncs, &mut dice);
            check_recovery(data, acknowledged, &run.states).map(|_| ())
        });
        if let Err(what) = verdict {
            fallen.push(format!("image {n}, cut at {cut} of {}: {what}", run.journal.len()));
        }
    }
    fallen
}

/// Images in CI; the coordinator's crash tests use the same number.
const IMAGES: u64 = 25_000;

#[test]
fn a_power_failure_loses_no_acknowledged_block_and_leaves_no_partial_block() {
    let images = std::env::var("FLORIN_CRASH_IMAGES");
    let images = images.map_or(IMAGES, |all| {
        all.parse::<u64>().expect("FLORIN_CRASH_IMAGES must be a number") / 2
    });
    let fallen = failing_images(images, false, true, seed());
    assert!(fallen.is_empty(), "{} images: {:#?}", fallen.len(), &fallen[..fallen.len().min(5)]);
}

#[test]
fn the_crash_images_detect_a_block_committed_without_its_changes() {
    let fallen = failing_images(200, true, true, seed());
    assert!(fallen.len() > 10, "only {} of 200 images detected it", fallen.len());
}

#[test]
fn the_crash_images_detect_a_disk_that_does_not_sync() {
    let fallen = failing_images(200, false, false, seed());
    assert!(fallen.len() > 100, "only {} of 200 images detected it", fallen.len());
}

/// A chain on a disk that fails once its budget of operations is used up.
fn chain_on_failing_disk(failing_syncs: bool) -> (Arc<Disk>, EmbeddedChain) {
    let disk = Disk::from_data(Vec::new());
    let device: Arc<dyn StorageBackend> = Arc::<Disk>::clone(&disk) as _;
    drop(EmbeddedChain::create_on_device(LedgerFile(device), &genesis(3)).unwrap());
    let data = disk.data.lock().unwrap().clone();
    let disk = Arc::new(Disk {
        data: Mutex::new(data),
        budget: AtomicI64::new(-1),
        failing_syncs,
        ..Disk::default()
    });
    let device: Arc<dyn StorageBackend> = Arc::<Disk>::clone(&disk) as _;
    let chain = EmbeddedChain::open_on_device(LedgerFile(device), operator(), clock()).unwrap();
    (disk, chain)
}

#[test]
fn a_failing_disk_poisons_the_writer_before_it_acknowledges_lost_blocks() {
    for failing_syncs in [false, true] {
        for budget in 0..6 {
            let (disk, chain) = chain_on_failing_disk(failing_syncs);
            let (payer, payee) = (signer(0), signer(1).address());
            let one = Amount::from_units(1);
            chain.transfer(&payer, payee, one).unwrap();
            let balance = chain.balance(payee).unwrap();
            disk.budget.store(budget, Ordering::SeqCst);
            let mut failed = None;
            let mut paid = 0;
            for _ in 0..20 {
                match chain.transfer(&payer, payee, one) {
                    Ok(_) => paid += 1,
                    Err(error) => {
                        failed = Some(error.to_string());
                        break;
                    }
                }
            }
            let failed = failed.expect("the disk failed");
            let code = if failing_syncs { "[STORAGE_FAILED]" } else { "[STORAGE_FULL]" };
            assert!(failed.contains(code), "{failed}");
            // Every acknowledged transfer is visible; at most one unacknowledged one is.
            let now = chain.balance(payee).unwrap();
            let sure = balance.plus(Amount::from_units(paid)).unwrap();
            assert!(now == sure || now == sure.plus(one).unwrap());
            // The disk works again, but the content of the last block on it is unknown to this
            // chain.
            disk.budget.store(-1, Ordering::SeqCst);
            assert!(matches!(chain.transfer(&payer, payee, one), Err(LedgerError::Unavailable(_))));
            drop(chain);
            let device: Arc<dyn StorageBackend> = Arc::<Disk>::clone(&disk) as _;
            let chain =
                EmbeddedChain::open_on_device(LedgerFile(device), operator(), clock()).unwrap();
            let found = chain.balance(payee).unwrap();
            assert!(found == sure || found == sure.plus(one).unwrap(), "{found} of {sure}");
            chain.transfer(&payer, payee, one).unwrap();
        }
    }
}
