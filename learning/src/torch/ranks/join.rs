//! Joining: the rendezvous, the comparison of what the ranks have, and the measurement of their links.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tch::{Device, Kind, TchError, Tensor};

use super::{Ranks, parsed};
use crate::ranks::{
    DATA_FACT, PRIVATE_FACT, RankCard, RankError, RankErrorCode, RankFacts, RankNews, RankNotify,
    RankPlace, RankRows, RankSettings, RowsShape,
};
use crate::reduction::ReductionPlan;
use crate::tensors::header::printable;
use crate::torch::c10d::{
    C10dError, C10dFailure, ProcessGroup, StoreAddress, TcpStore, cpu_capability,
};
use crate::virtual_workers::Assignment;

/// Bytes of a large transfer of the measurement.
const LARGE_BYTES: i64 = 4 << 20;
/// Transfers of each size; the fastest one counts.
const TRANSFERS: u32 = 4;
/// Longest value of a fact in a message.
const FACT_CHARS: usize = 80;

/// The statement of a rank that joins.
#[derive(Serialize, Deserialize)]
struct Hello {
    facts: RankFacts,
    host: String,
    capability: String,
}

impl Ranks {
    /// Meets the other ranks, compares the facts of all with those of rank 0, and measures the links. The
    /// rows are facts, too, unless rank 0 alone has them: then the others receive their shape.
    ///
    /// # Errors
    /// [`RankError`]: no rendezvous, a rank that does not join in time or disagrees, an interface that
    /// is not there.
    pub fn join(
        settings: RankSettings,
        facts: &RankFacts,
        notify: RankNotify,
    ) -> Result<Self, RankError> {
        if let Some(name) = &settings.interface {
            check_interface(name)?;
        }
        let RankPlace { rank, size, .. } = settings.place;
        let pipeline = settings.pipeline.as_ref().map(|pipeline| pipeline.place(rank, size));
        let pipeline = pipeline.transpose()?;
        check_rows(&settings, pipeline.is_some_and(|place| place.is_private()))?;
        let deadline = Instant::now() + settings.limit;
        let left = || deadline.saturating_duration_since(Instant::now()).max(LEAST_WAIT);
        let RankPlace { rank, size, host, port, serves, attempt, .. } = &settings.place;
        let prefix = format!("florin/{attempt}");
        let address =
            StoreAddress { host, port: *port, serves: *serves, prefix: &prefix, processes: *size };
        let store = TcpStore::connect(&address, left()).map_err(|error| {
            let at = format!("{host}:{port}");
            let why = match serves {
                true => format!(
                    "rank 0 cannot open the rendezvous at {at} ({error}): set MASTER_PORT to a free \
                     port for all ranks"
                ),
                false => format!(
                    "rank {rank} cannot reach the rendezvous at {at} ({error}): start rank 0 there, \
                     or set MASTER_ADDR and MASTER_PORT for all ranks"
                ),
            };
            RankError::new(RankErrorCode::RendezvousFailed, why)
        })?;
        claim(&store, &settings.place)?;
        let capability = match settings.device.contains("CUDA") {
            true => settings.device.clone(),
            false => cpu_capability(),
        };
        let facts = with_rows(facts.clone(), &settings.rows);
        let hello = Hello { facts, host: host_name(), capability };
        let hellos = agree(&store, &settings, &hello, &left)?;
        let shape = give_shape(&store, &settings)?;
        let group =
            ProcessGroup::join(&store, *rank, *size, settings.interface.as_deref(), settings.limit)
                .map_err(|error| group_failed(&settings, &error))?;
        let assignment = Assignment::even(*size, *size);
        let mut ranks = Self {
            store,
            group,
            cards: Vec::new(),
            notify,
            jobs: 0,
            assignment,
            is_assigned: false,
            speeds: Vec::new(),
            reduction: ReductionPlan::TREE,
            bucket_bytes: u64::MAX,
            overlaps: false,
            pipeline,
            sends: BTreeMap::new(),
            cut: Vec::new(),
            actions: BTreeMap::new(),
            add_seconds_per_byte: if *rank == 0 { measure_addition()? } else { 0.0 },
            shape,
            settings,
        };
        ranks.measure_links(hellos)?;
        Ok(ranks)
    }

    /// Measures the links from rank 0 to each other rank, one after another.
    fn measure_links(&mut self, hellos: Vec<Hello>) -> Result<(), RankError> {
        let (rank, size) = (self.settings.place.rank, self.settings.place.size);
        if rank > 0 {
            self.measure_link(0, false)?;
            return Ok(());
        }
        let mut links = vec![(0.0, 0.0)];
        for other in 1..size {
            links.push(self.measure_link(other, true)?);
        }
        let cards = (0..).zip(hellos).zip(links).map(|((rank, hello), (alpha, beta))| {
            let Hello { host, capability, .. } = hello;
            let (host, capability) = (printable(&host), printable(&capability));
            RankCard { rank, host, capability, alpha, beta }
        });
        self.cards = cards.collect();
        (self.notify)(&RankNews::Joined { cards: self.cards.clone() });
        Ok(())
    }

    /// Sends small and large tensors there and back. Returns the seconds of a transfer without bytes,
    /// and for each byte.
    fn measure_link(&self, other: u32, begins: bool) -> Result<(f64, f64), RankError> {
        let mut seconds = [f64::INFINITY; 2];
        for (bytes, seconds) in [1, LARGE_BYTES].into_iter().zip(&mut seconds) {
            let tensor = Tensor::f_zeros(bytes, (Kind::Uint8, Device::Cpu))
                .map_err(|error| RankError::new(RankErrorCode::Failed, error.to_string()))?;
            for _ in 0..TRANSFERS {
                let start = Instant::now();
                for sends in [begins, !begins] {
                    let transfer = match sends {
                        true => self.group.send(&tensor, other, 0),
                        false => self.group.receive(&tensor, other, 0),
                    };
                    transfer
                        .and_then(|transfer| transfer.wait(self.settings.limit))
                        .map_err(|error| self.failed(Some(other), &error))?;
                }
                *seconds = seconds.min(start.elapsed().as_secs_f64() / 2.0);
            }
        }
        let [small, large] = seconds;
        Ok((small, ((large - small) / LARGE_BYTES as f64).max(0.0)))
    }
}

/// Checks that rank 0 has rows, and each other rank if all have them.
fn check_rows(settings: &RankSettings, is_private: bool) -> Result<(), RankError> {
    let is_right = match &settings.rows {
        RankRows::Shared { .. } => !is_private,
        RankRows::Own { .. } => is_private && settings.place.rank == 0,
        RankRows::Absent => is_private && settings.place.rank > 0,
    };
    if is_right {
        return Ok(());
    }
    let why =
        "a rank has rows that others do not have: only rank 0 of a private pipeline has them alone";
    Err(RankError::new(RankErrorCode::Unsupported, why))
}

/// The facts of a rank with those about its rows. A fingerprint travels only if all ranks have the rows.
fn with_rows(mut facts: RankFacts, rows: &RankRows) -> RankFacts {
    let is_private = match rows {
        RankRows::Shared { fingerprint } => {
            facts.insert(DATA_FACT.to_owned(), fingerprint.clone());
            false
        }
        RankRows::Own { .. } | RankRows::Absent => true,
    };
    facts.insert(PRIVATE_FACT.to_owned(), if is_private { "yes" } else { "no" }.to_owned());
    facts
}

/// Gives the shape of rank 0's rows to the ranks that have none. Returns it there.
fn give_shape(store: &TcpStore, settings: &RankSettings) -> Result<Option<RowsShape>, RankError> {
    let failed =
        |error: C10dError| RankError::new(RankErrorCode::RendezvousFailed, error.to_string());
    match &settings.rows {
        RankRows::Shared { .. } => Ok(None),
        RankRows::Own { shape, .. } => {
            let bytes = serde_json::to_vec(shape).unwrap_or_default();
            store.set("rows", &bytes).map_err(failed)?;
            Ok(None)
        }
        RankRows::Absent => {
            let bytes = store.get("rows", settings.limit).map_err(failed)?;
            parsed::<RowsShape>(&bytes)?.check().map(Some)
        }
    }
}

/// Seconds for the addition of a byte to another one.
fn measure_addition() -> Result<f64, RankError> {
    let failed = |error: TchError| RankError::new(RankErrorCode::Failed, error.to_string());
    let zeros = || Tensor::f_zeros(LARGE_BYTES / 4, (Kind::Float, Device::Cpu));
    let (mut into, from) = (zeros().map_err(failed)?, zeros().map_err(failed)?);
    let mut seconds = f64::INFINITY;
    for _ in 0..TRANSFERS {
        let start = Instant::now();
        let _ = into.f_add_(&from).map_err(failed)?;
        seconds = seconds.min(start.elapsed().as_secs_f64());
    }
    Ok(seconds / LARGE_BYTES as f64)
}

/// The longest wait of rank 0 for each rank to have read that they do not start.
const VERDICT_READ: Duration = Duration::from_secs(1);
/// The time that the verdict of rank 0 takes.
const VERDICT_MARGIN: Duration = Duration::from_secs(5);
/// The least time for a call, so that its own message is about what it waited for.
const LEAST_WAIT: Duration = Duration::from_millis(100);

/// Takes the number of this rank, which another process may have taken: one of another start.
fn claim(store: &TcpStore, place: &RankPlace) -> Result<(), RankError> {
    let RankPlace { rank, host, port, .. } = place;
    match store.count(&format!("claim/{rank}")) {
        Ok(1) => Ok(()),
        Ok(_) => {
            let why = format!(
                "there is a rank {rank} at {host}:{port} already: set MASTER_PORT to a port of this \
                 start alone"
            );
            Err(RankError::new(RankErrorCode::EnvironmentInvalid, why))
        }
        Err(error) => Err(RankError::new(RankErrorCode::RendezvousFailed, error.to_string())),
    }
}

/// Compares the facts of all ranks. Returns what each of them stated, at rank 0.
fn agree(
    store: &TcpStore,
    settings: &RankSettings,
    own: &Hello,
    left: &dyn Fn() -> Duration,
) -> Result<Vec<Hello>, RankError> {
    let RankPlace { rank, size, .. } = settings.place;
    let failed =
        |error: C10dError| RankError::new(RankErrorCode::RendezvousFailed, error.to_string());
    let bytes = serde_json::to_vec(own).unwrap_or_default();
    store.set(&format!("hello/{rank}"), &bytes).map_err(failed)?;
    let missing = |rank: u32, error: C10dError| match error.kind {
        C10dFailure::TimedOut => RankError::new(
            RankErrorCode::Missing,
            format!(
                "rank {rank} of {size} has not joined within {} seconds: look at its log; \
                 --rank-timeout sets the limit",
                settings.limit.as_secs()
            ),
        ),
        _ => failed(error),
    };
    if rank > 0 {
        // Rank 0 waits for the others as long: its verdict may name a missing one.
        let verdict = store.get("verdict", left() + VERDICT_MARGIN);
        let verdict = parsed(&verdict.map_err(|error| missing(0, error))?)?;
        // Rank 0 does not wait long for it.
        let _ = store.set(&format!("read/{rank}"), b"");
        let verdict: Result<(), RankError> = verdict;
        return verdict.map(|()| Vec::new());
    }
    let gather = || {
        let hello = |rank: u32| {
            let bytes = store.get(&format!("hello/{rank}"), left());
            parsed(&bytes.map_err(|error| missing(rank, error))?)
        };
        let hellos = (0..size).map(hello).collect::<Result<Vec<Hello>, RankError>>()?;
        match differences(&hellos) {
            None => Ok(hellos),
            Some(why) => Err(RankError::new(RankErrorCode::Disagree, why)),
        }
    };
    let found = gather();
    let verdict = found.as_ref().map(|_| ()).map_err(RankError::clone);
    let bytes = serde_json::to_vec(&verdict).unwrap_or_default();
    store.set("verdict", &bytes).map_err(failed)?;
    if verdict.is_err() {
        // The store may end with this process: a rank that has not read the verdict would name rank 0.
        for rank in 1..size {
            let _ = store.get(&format!("read/{rank}"), VERDICT_READ);
        }
    }
    found
}

/// The first facts in which a rank differs from rank 0.
fn differences(hellos: &[Hello]) -> Option<String> {
    let (first, others) = hellos.split_first()?;
    for (rank, other) in (1..).zip(others) {
        let names: BTreeSet<&String> = first.facts.keys().chain(other.facts.keys()).collect();
        let differs = |name: &&&String| first.facts.get(**name) != other.facts.get(**name);
        if let Some(name) = names.iter().find(differs) {
            let value = |hello: &Hello| {
                let text = hello.facts.get(*name).map_or("none", String::as_str);
                text.chars().take(FACT_CHARS).collect::<String>()
            };
            let (ours, theirs) = (value(first), value(other));
            return Some(format!(
                "the ranks disagree about {name}: rank {rank} has {theirs}, rank 0 has {ours}. Start \
                 all ranks with the same command, program and data"
            ));
        }
    }
    None
}

/// Refuses an interface that this machine does not have.
fn check_interface(name: &str) -> Result<(), RankError> {
    let folder = Path::new("/sys/class/net");
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(()) };
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    if names.iter().any(|own| own == name) {
        return Ok(());
    }
    names.sort();
    let why = format!(
        "this machine has no network interface {name}: set --rank-interface to one of {}",
        names.join(", ")
    );
    Err(RankError::new(RankErrorCode::InterfaceMissing, why))
}

fn group_failed(settings: &RankSettings, error: &C10dError) -> RankError {
    let code = match error.kind {
        C10dFailure::TimedOut => RankErrorCode::Missing,
        C10dFailure::NoInterface => RankErrorCode::InterfaceMissing,
        C10dFailure::Closed => RankErrorCode::Lost,
        C10dFailure::Other => RankErrorCode::Failed,
    };
    let rank = settings.place.rank;
    let why = format!(
        "rank {rank} cannot connect to the other ranks ({error}): set --rank-interface to the network \
         interface on which they reach each other"
    );
    RankError::new(code, why)
}

/// The name of this machine.
fn host_name() -> String {
    let name = rustix::system::uname();
    name.nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_with_other_facts_is_named() {
        let hello = |facts: &[(&str, &str)]| Hello {
            facts: facts.iter().map(|&(a, b)| (a.to_owned(), b.to_owned())).collect(),
            host: String::new(),
            capability: String::new(),
        };
        let same = hello(&[("model", "a"), ("seed", "1")]);
        let other = hello(&[("model", "a"), ("seed", "2")]);
        let fewer = hello(&[("model", "a")]);
        assert_eq!(differences(&[hello(&[]), hello(&[])]), None);
        let text = differences(&[same, other]).unwrap();
        assert!(text.contains("about seed: rank 1 has 2, rank 0 has 1"), "{text}");
        let text = differences(&[hello(&[("model", "a"), ("seed", "1")]), fewer]).unwrap();
        assert!(text.contains("rank 1 has none"), "{text}");
    }

    #[test]
    fn the_fingerprint_of_rows_is_no_fact_if_rank_0_alone_has_them() {
        let shape = RowsShape { rows: 3, width: 2, classes: 2 };
        let fingerprint = "3f".to_owned();
        let own = RankRows::Own { fingerprint: fingerprint.clone(), shape };
        let facts = |rows: &RankRows| with_rows(RankFacts::new(), rows);
        let yes = RankFacts::from([(PRIVATE_FACT.to_owned(), "yes".to_owned())]);
        assert_eq!((facts(&own), facts(&RankRows::Absent)), (yes.clone(), yes));
        assert_eq!(facts(&RankRows::Shared { fingerprint })[DATA_FACT], "3f");
    }

    #[test]
    fn an_interface_that_is_gone_is_refused_with_the_names_of_the_others() {
        let error = check_interface("florin99").unwrap_err();
        assert_eq!(error.code, RankErrorCode::InterfaceMissing);
        assert!(error.why.contains("one of"), "{error}");
        assert_eq!(check_interface("lo"), Ok(()));
    }
}
