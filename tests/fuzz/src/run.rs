//! The process of one target: runs variants until the time is over, and enforces limits per input.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

use super::mutate::variant;
use super::pool::{self, Pool};
use super::targets::Target;
use crate::arguments::FuzzArgs;
use florin::failure::Exit;

/// Maximum processor time of an input.
const INPUT_TIME_MAX: Duration = Duration::from_secs(1);
/// Interval of the check for slow inputs.
const LOOK: Duration = Duration::from_millis(100);
/// Maximum additional memory of the process; an allocation beyond it aborts the process.
const MEMORY_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// Maximum resident memory of a target's process, including program and libraries, in MiB.
const RESIDENT_MIB_MAX: u64 = 256;
/// Maximum size of an input that is added to the corpus, in bytes.
const CORPUS_BYTES_MAX: usize = 2_048;

/// Runs a target in this process.
pub(super) fn run(target: &Target, pool: Pool, arguments: &FuzzArgs) -> anyhow::Result<Exit> {
    limit_memory()?;
    let number = Arc::new(AtomicU64::new(0));
    watch(Arc::clone(&number), target.name);
    std::panic::set_hook(Box::new(|panic| anstream::eprintln!("{panic}")));
    run_inputs(target, pool, arguments, &number)
}

/// Runs the corpus first, then variants until the time is over.
fn run_inputs(
    target: &Target,
    mut pool: Pool,
    arguments: &FuzzArgs,
    number: &AtomicU64,
) -> anyhow::Result<Exit> {
    let last = arguments.input.as_ref().map(File::create).transpose()?;
    let mut rng = StdRng::seed_from_u64(arguments.seed ^ seed_of(target.name));
    let until = Instant::now() + Duration::from_secs(arguments.seconds.into());
    let mut known = pool.inputs.clone().into_iter();
    let mut added = 0;
    loop {
        let (input, is_known) = match known.next() {
            Some(input) => (input, true),
            None if Instant::now() >= until => break,
            None => (variant(&pool.inputs, &mut rng), false),
        };
        number.fetch_add(1, Ordering::Relaxed);
        if let Some(last) = &last {
            write_input(last, &input)?;
        }
        let injected = arguments.inject.as_deref();
        let behaves = || {
            let behaviour = (target.run)(&input);
            assert!(
                !injected.is_some_and(|text| behaviour.contains(text)),
                "injected: {behaviour}"
            );
            behaviour
        };
        let Ok(behaviour) = catch_unwind(AssertUnwindSafe(behaves)) else {
            let path = pool::save(&arguments.corpus, target.name, "crash", &input)?;
            anstream::println!("{}: panic on {}", target.name, path.display());
            return Ok(Exit::Negative);
        };
        if pool.is_new(&behaviour) && !is_known {
            if added < arguments.add && input.len() <= CORPUS_BYTES_MAX {
                pool::save(&arguments.corpus, target.name, "found", &input)?;
                added += 1;
            }
            pool.add(input);
        }
    }
    let (tried, ways) = (number.load(Ordering::Relaxed), pool.behaviours());
    let (name, memory, seed) = (target.name, most_memory_mib(), arguments.seed);
    anstream::println!(
        "{name}: {tried} inputs, {ways} distinct behaviours, at most {memory} MiB, seed {seed}"
    );
    if arguments.target.is_some() && memory > RESIDENT_MIB_MAX {
        anstream::println!("{name}: used more than {RESIDENT_MIB_MAX} MiB");
        return Ok(Exit::Negative);
    }
    Ok(Exit::Done)
}

/// A separate random stream for each target.
fn seed_of(name: &str) -> u64 {
    name.bytes().fold(0, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into()))
}

/// Writes the next input to the file: its length, then its bytes.
fn write_input(last: &File, input: &[u8]) -> anyhow::Result<()> {
    let length = u32::try_from(input.len()).unwrap_or(u32::MAX).to_le_bytes();
    let bytes = [length.as_slice(), input].concat();
    last.write_all_at(&bytes, 0).context("cannot write the input file")
}

/// Reads the last written input.
pub(super) fn last_input(path: &Path) -> anyhow::Result<Vec<u8>> {
    let bytes = std::fs::read(path)?;
    let (length, rest) = bytes.split_first_chunk::<4>().context("no input was tried")?;
    let length = usize::try_from(u32::from_le_bytes(*length))?;
    Ok(rest.get(..length).context("the input file is truncated")?.to_vec())
}

/// Limits the memory of the process.
fn limit_memory() -> anyhow::Result<()> {
    let limit = getrlimit(Resource::Data);
    let now = own_memory_bytes().context("/proc/self/status has no VmData")?;
    let most = now.saturating_add(MEMORY_BYTES_MAX);
    setrlimit(Resource::Data, Rlimit { current: Some(most), maximum: limit.maximum })?;
    Ok(())
}

fn status_kib(key: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

fn own_memory_bytes() -> Option<u64> {
    status_kib("VmData").map(|kib| kib.saturating_mul(1_024))
}

fn most_memory_mib() -> u64 {
    status_kib("VmHWM").unwrap_or_default() / 1_024
}

/// Aborts the process if an input takes too much processor time; the parent process has the input.
fn watch(number: Arc<AtomicU64>, name: &'static str) {
    let used = || {
        let now = clock_gettime(ClockId::ProcessCPUTime);
        Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or_default())
    };
    std::thread::spawn(move || {
        let (mut current, mut since) = (0, used());
        loop {
            std::thread::sleep(LOOK);
            let now = number.load(Ordering::Relaxed);
            if now != current {
                (current, since) = (now, used());
            } else if used().saturating_sub(since) > INPUT_TIME_MAX {
                anstream::eprintln!("{name}: an input took more than {INPUT_TIME_MAX:?}");
                std::process::abort();
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use florin::log::{LogFormat, LogOptions};

    use super::*;

    fn settings(corpus: &Path, input: Option<&Path>) -> FuzzArgs {
        let (corpus, input) = (corpus.to_owned(), input.map(Path::to_owned));
        let log = LogOptions { verbose: 0, log_format: LogFormat::Text };
        FuzzArgs { seconds: 60, seed: 1, corpus, add: 0, target: None, inject: None, input, log }
    }

    #[test]
    fn a_panic_two_mutations_away_is_found_and_its_input_is_added_and_tried_first() {
        let corpus = tempfile::tempdir().unwrap();
        std::fs::create_dir(corpus.path().join("injected")).unwrap();
        std::fs::write(corpus.path().join("injected/seed"), b"size = 12, kind = 3").unwrap();
        let run = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes);
            assert!(!(text.contains("size = 65536") || text.contains("kind = NaN")), "injected");
            format!("{} words", text.split_whitespace().count())
        };
        let target = Target { name: "injected", run };
        let input = corpus.path().join("input");
        let arguments = settings(corpus.path(), Some(&input));
        let number = AtomicU64::new(0);
        let pool = || Pool::open(corpus.path(), "injected").unwrap();
        assert_eq!(run_inputs(&target, pool(), &arguments, &number).unwrap(), Exit::Negative);
        let found = last_input(&input).unwrap();
        assert!(catch_unwind(|| run(&found)).is_err());
        // The next run fails on the stored input before it creates variants.
        number.store(0, Ordering::Relaxed);
        assert_eq!(run_inputs(&target, pool(), &arguments, &number).unwrap(), Exit::Negative);
        assert!(number.load(Ordering::Relaxed) <= 2);
    }
}
