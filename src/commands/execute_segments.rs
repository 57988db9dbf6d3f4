//! `florin execute-segments`: computes the work of an executor's folder, alone or as one of several ranks.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use florin_learning::memory::MemorySettings;
use florin_learning::ranks::{RankError, RankNews, RankPlace, RankRows, RankSettings, Ranks};
use florin_learning::select::EngineOptions;
use florin_participant::Shutdown;
use florin_participant::leases::executors::{
    ExecuteError, LoadedWork, PARENT_VARIABLE, write_failure,
};

use super::participate::stop_on_request;
use crate::cli::ExecuteSegments;
use crate::compose;
use crate::failure::{Exit, Failure};

/// Time between two looks at the process that started this one.
const PARENT_EVERY: Duration = Duration::from_millis(500);
/// The longest wait for another rank.
const RANK_LIMIT: Duration = Duration::from_secs(60);

pub(super) fn run(arguments: &ExecuteSegments) -> anyhow::Result<Exit> {
    let place = RankPlace::from_environment(|name| std::env::var(name).ok());
    let place = place.map_err(|error| rank_failure(&error.into()))?;
    end_with_parent(&arguments.folder)?;
    let shutdown = stop_on_request()?;
    compute(arguments, place.as_ref(), &shutdown).map(|()| Exit::Done)
}

fn compute(
    arguments: &ExecuteSegments,
    place: Option<&RankPlace>,
    shutdown: &Shutdown,
) -> anyhow::Result<()> {
    let is_first = place.is_none_or(|place| place.rank == 0);
    let loaded = LoadedWork::load(&arguments.folder).map_err(|error| {
        if is_first && !matches!(error, ExecuteError::NoWork(_)) {
            let _ = write_failure(&arguments.folder, &error);
        }
        failure(&error)
    })?;
    let Some(place) = place else {
        let mut engine = compose::engine(arguments.engine)?;
        let stopped = || shutdown.is_requested();
        return loaded.execute(&mut *engine, 1, &stopped).map_err(|error| failure(&error));
    };
    let mut ranks = join(arguments, &loaded, place.clone())?;
    if is_first {
        let gpu = place.local;
        let options = EngineOptions { ranks: Some(ranks), gpu, ..EngineOptions::default() };
        let mut engine = compose::engine_with(arguments.engine, options)?;
        let stopped = || shutdown.is_requested();
        let size = place.size;
        return loaded.execute(&mut *engine, size, &stopped).map_err(|error| failure(&error));
    }
    let (model, rows) = loaded.model_and_rows();
    let mut go_on = || match shutdown.is_requested() {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    };
    let served = ranks.serve(arguments.engine.engine, model, Some(rows), &mut go_on);
    served.map_err(|error| {
        Failure::negative("TRAINING_FAILED", format!("rank {}: {error}", place.rank)).into()
    })
}

/// Meets the other ranks of the executor.
fn join(
    arguments: &ExecuteSegments,
    loaded: &LoadedWork,
    place: RankPlace,
) -> anyhow::Result<Ranks> {
    let engine = compose::engine(arguments.engine)?;
    let class = florin_work::compute_class(&*engine);
    let facts = [
        ("the order", loaded.order().to_string()),
        ("the seed", loaded.seed().to_string()),
        ("the virtual workers", loaded.virtual_workers().to_string()),
        // A rank of another class has other bits.
        ("the class", class.map(|class| class.to_string()).unwrap_or_default()),
        ("the version of the program", env!("CARGO_PKG_VERSION").to_owned()),
    ];
    let facts = facts.map(|(name, value)| (name.to_owned(), value)).into();
    // A process that does not know the token of the work finds no rank.
    let place = RankPlace { attempt: format!("{}.{}", place.attempt, loaded.token()), ..place };
    let settings = RankSettings {
        place,
        device: engine.name().to_owned(),
        interface: arguments.rank_interface.clone(),
        limit: RANK_LIMIT,
        pinned: None,
        reduction: None,
        overlaps: None,
        pipeline: None,
        rows: RankRows::shared(loaded.model_and_rows().1),
        memory: memory(&arguments.folder),
        memory_bytes: None,
    };
    let notify = Box::new(|news: &RankNews| anstream::eprintln!("{news}"));
    Ranks::join(settings, &facts, notify).map_err(|error| rank_failure(&error))
}

fn memory(folder: &Path) -> MemorySettings {
    let notify = std::sync::Arc::new(|news: &florin_learning::memory::MemoryNews| {
        anstream::eprintln!("{news}");
    });
    MemorySettings { folder: folder.to_owned(), notify }
}

/// Ends this process soon after its work was removed, and after the process that the environment names as its parent: a
/// launcher between them may neither pass on signals nor close standard input.
fn end_with_parent(folder: &Path) -> anyhow::Result<()> {
    let parent = match std::env::var(PARENT_VARIABLE) {
        Ok(parent) => Some(parent_process(&parent)?),
        Err(_) => None,
    };
    let work = folder.join("work.json");
    if !work.exists() {
        return Err(failure(&ExecuteError::NoWork(folder.display().to_string())));
    }
    std::thread::spawn(move || {
        let is_alive = |parent| rustix::process::test_kill_process(parent).is_ok();
        while work.exists() && parent.is_none_or(is_alive) {
            std::thread::sleep(PARENT_EVERY);
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "states are on disk: the process may end as in a crash"
        )]
        std::process::exit(0);
    });
    Ok(())
}

/// The process of a number in the environment.
fn parent_process(number: &str) -> anyhow::Result<rustix::process::Pid> {
    let process = number.parse().ok().and_then(rustix::process::Pid::from_raw);
    process.ok_or_else(|| {
        let message = format!("{PARENT_VARIABLE} is {number:?}: must be the number of a process");
        Failure::input("INVALID_ENVIRONMENT", message).into()
    })
}

fn failure(error: &ExecuteError) -> anyhow::Error {
    match error {
        ExecuteError::NoWork(_) => Failure::input(error.code(), error.to_string()).into(),
        _ => Failure::negative(error.code(), error.to_string()).into(),
    }
}

fn rank_failure(error: &RankError) -> anyhow::Error {
    Failure::negative(error.code.as_str(), error.why.clone()).into()
}
