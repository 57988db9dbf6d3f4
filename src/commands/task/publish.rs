//! `florin task publish`: opens the escrow on the ledger, announces the task to the coordinator,
//! and uploads its blobs.
//!
//! Each step is idempotent, and the exact task is stored next to its file before any tokens are
//! locked. An interrupted publication therefore resumes where it stopped, and the budget is locked
//! only once.

use std::path::{Path, PathBuf};

use anyhow::Context;
use florin_ledger::{Ledger, LedgerError, Refusal, Terms};
use florin_participant::{Backoff, DepositPending, Shutdown, retry_with_backoff};
use florin_protocol::{ErrorCode, ModelArchitecture, TaskId, TaskSpec, TaskView, WalletSigner};
use florin_sim::quote::PayLimits;
use serde_json::json;

use crate::cli::TaskPublish;
use crate::commands::set_aside::{path_aside, paths_aside};
use crate::commands::wallet;
use crate::failure::{Exit, Failure};
use crate::market::MarketConnection;
use crate::progress::Progress;
use crate::show::{self, NOTE};
use crate::task_file::{self, Parties, PreparedTask};

/// Most tasks of a market whose model is compared with that of a new task, the latest first.
const COMPARED_TASKS_MAX: usize = 32;

pub(super) fn run(arguments: &TaskPublish) -> anyhow::Result<Exit> {
    let market = MarketConnection::connect(&arguments.market)?;
    let wallet = wallet::open(&arguments.wallet)?;
    let parties = Parties {
        market: market.coordinator().market,
        buyer: wallet.address(),
        coordinator: market.coordinator().account,
        now: market.now(),
    };
    let mut ready = task_file::read(&arguments.file, &parties)?;
    let fresh = ready.spec.expires;
    resume_publication(&arguments.file, &mut ready)?;
    if let Err(refusal) = check_before_escrow(&market, &ready.spec) {
        // An earlier publication with another expiry may have been refused before its escrow.
        if ready.spec.expires == fresh || market.ledger()?.task(ready.spec.id())?.is_some() {
            return Err(refusal);
        }
        ready.spec.expires = fresh;
        check_before_escrow(&market, &ready.spec)?;
    }
    let secrets = arguments.wallet.secrets();
    super::graph_check::check_graph(&arguments.file, &ready, &arguments.sandbox, secrets)?;
    let earlier = store_publication(&arguments.file, &ready.spec)?;
    let spec = &ready.spec;
    let ledger = market.signing_ledger(&wallet, &arguments.wallet)?;
    let mut doubts = doubts_by_earlier_tasks(&market, &ready)?;
    // A publication may have stopped before its escrow, or be of another market.
    if let Some(task) = earlier
        && ledger.task(task)?.is_some()
    {
        doubts.push(locks_another_budget(&arguments.file, task));
    }
    let warnings = print_warnings(spec, doubts)?;
    open_escrow(&*ledger, &wallet, spec)?;
    let view = publish_with_retries(&market, spec)?;
    let id = spec.id();
    if view.missing_blobs.contains(&spec.base_model) {
        Progress::during("uploading the model", || market.put_blob(&ready.base_model))?;
    }
    for (digest, bytes) in &ready.blobs {
        if view.missing_blobs.contains(digest) {
            Progress::during("uploading the blobs", || market.put_blob(bytes))?;
        }
    }
    if view.holdout_missing {
        Progress::during("uploading the holdout", || market.put_holdout(id, &ready.holdout))?;
    }
    if arguments.json.json {
        let locked = spec.budget.data.plus(spec.budget.infrastructure)?;
        show::json(&json!({
            "task": id,
            "locked": show::units(locked),
            "warnings": warnings,
        }))?;
        return Ok(Exit::Done);
    }
    super::file::describe(spec)?;
    super::file::print_hints(&ready);
    anstream::println!("\nPublished. Task {id}");
    show::hint(&format!("Follow it live: florin task follow {}", id.short()));
    Ok(Exit::Done)
}

/// The doubts about a task that follow from the latest tasks of the market.
///
/// Public updates of a task with the same model would improve the new task's model too. Networks that start from
/// the parameters of their own specification do not have that in common; softmax regressions, which start from
/// zeros, and models that a buyer brings do. The rows by which rounds of a task with the same holdout were valued are
/// public.
fn doubts_by_earlier_tasks(
    market: &MarketConnection,
    ready: &PreparedTask,
) -> anyhow::Result<Vec<String>> {
    let spec = &ready.spec;
    let (own, is_softmax) = (spec.id(), matches!(spec.model, ModelArchitecture::Softmax { .. }));
    let starts_alike = is_softmax || ready.is_model_brought;
    let (mut copyable, mut disclosed) = (None, None);
    for summary in market.tasks()?.iter().rev().take(COMPARED_TASKS_MAX) {
        if summary.id == own || summary.round.0 == 0 {
            continue;
        }
        let other = market.task(summary.id)?;
        if other.reported == 0 {
            continue;
        }
        if starts_alike && other.spec.model == spec.model {
            copyable.get_or_insert(summary.id);
        }
        if other.spec.holdout.root == spec.holdout.root {
            disclosed.get_or_insert(summary.id);
        }
    }
    Ok(copyable.map(copies_are_paid).into_iter().chain(disclosed.map(holdout_is_known)).collect())
}

/// Prints what is doubtful about a task, and returns it.
fn print_warnings(spec: &TaskSpec, mut warnings: Vec<String>) -> anyhow::Result<Vec<String>> {
    let doubtful = super::quote::warnings(spec, &PayLimits::new(spec)?)?;
    warnings.extend(doubtful.into_iter().map(|(code, sentence)| format!("{sentence} [{code}]")));
    for warning in &warnings {
        anstream::eprintln!("{NOTE}warning:{NOTE:#} {warning}");
    }
    Ok(warnings)
}

fn locks_another_budget(file: &Path, earlier: TaskId) -> String {
    format!(
        "{} was published as task {} before: this is another task with a budget of its own, and the earlier one \
         is not changed by it. `florin task close {}` ends that one [ANOTHER_TASK]",
        file.display(),
        earlier.short(),
        earlier.short()
    )
}

fn holdout_is_known(task: TaskId) -> String {
    format!(
        "task {} has the same holdout, and the rows of its rounds are public: members that train on them are paid \
         for that. Use rows that no task had [HOLDOUT_DISCLOSED]",
        task.short()
    )
}

fn copies_are_paid(task: TaskId) -> String {
    format!(
        "task {} has the same model, and its updates are public: copies of them can be paid in \
         this task like honest work. A hidden layer without model.initial prevents that.",
        task.short()
    )
}

/// Publishes a task at the coordinator, with retries until the coordinator sees the open escrow.
fn publish_with_retries(market: &MarketConnection, spec: &TaskSpec) -> anyhow::Result<TaskView> {
    let waiting = |why: &DepositPending| anstream::eprintln!("{NOTE}retrying: {why}{NOTE:#}");
    let attempt = || market.publish(spec).map_err(DepositPending);
    let published = retry_with_backoff(Backoff::default(), &Shutdown::new(), waiting, attempt);
    Ok(published.map_err(|DepositPending(error)| error)?)
}

/// Asks the coordinator for its refusal before any tokens are locked: it checks a task before it looks
/// for the escrow.
fn check_before_escrow(market: &MarketConnection, spec: &TaskSpec) -> anyhow::Result<()> {
    match market.publish(spec) {
        Err(error) if error.rejection().is_some_and(|r| r.code == ErrorCode::NotFunded) => Ok(()),
        asked => Ok(asked.map(drop)?),
    }
}

fn open_escrow(
    ledger: &dyn Ledger,
    buyer: &dyn WalletSigner,
    spec: &TaskSpec,
) -> anyhow::Result<()> {
    let terms = Terms::from_spec(spec);
    match ledger.open_task(buyer, &terms) {
        Ok(_) => Ok(()),
        Err(LedgerError::Refused(Refusal::TaskExists(_))) => {
            let opened = ledger.task(spec.id())?.map(|state| state.terms);
            if opened.as_ref() == Some(&terms) {
                return Ok(());
            }
            let owner = opened.map_or_else(Default::default, |opened| opened.buyer);
            let message = format!(
                "{owner} opened an escrow with other terms under the id of your task, {}, before \
                 you: nothing of yours is locked. Change `salt` in the task file, which gives the \
                 task another id, and publish again",
                spec.id()
            );
            Err(Failure::negative("TASK_ID_TAKEN", message).into())
        }
        Err(error) => Err(error).context("cannot lock the budget"),
    }
}

/// The file that stores the task of a task file as it was last published.
fn published_path(file: &Path) -> PathBuf {
    file.with_extension("published.json")
}

fn read_publication(path: &Path) -> anyhow::Result<Option<TaskSpec>> {
    match std::fs::read(path) {
        Ok(bytes) => {
            Ok(Some(serde_json::from_slice(&bytes).with_context(|| path.display().to_string())?))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}

/// If the file was published before and is as it was then, continues with exactly that task; an expiry
/// relative to the publication would otherwise make a different task of it.
fn resume_publication(file: &Path, ready: &mut PreparedTask) -> anyhow::Result<()> {
    let path = published_path(file);
    for path in [vec![path.clone()], paths_aside(&path)?].concat() {
        let Some(TaskSpec { expires, .. }) = read_publication(&path)?.filter(|earlier| {
            *earlier == TaskSpec { expires: earlier.expires, ..ready.spec.clone() }
        }) else {
            continue;
        };
        ready.spec.expires = expires;
        return Ok(());
    }
    Ok(())
}

/// Stores the task as it is published, before any tokens are locked. Returns the task that the file was last
/// published as, if it was another one; that stays in a file of its own.
fn store_publication(file: &Path, spec: &TaskSpec) -> anyhow::Result<Option<TaskId>> {
    let path = published_path(file);
    let earlier = read_publication(&path)?.map(|earlier| earlier.id());
    let earlier = earlier.filter(|earlier| *earlier != spec.id());
    if let Some(task) = earlier {
        let aside = path_aside(&path, task.short());
        std::fs::rename(&path, &aside).with_context(|| aside.display().to_string())?;
    }
    let written = path.with_extension("new");
    let bytes = serde_json::to_vec_pretty(spec)?;
    std::fs::write(&written, bytes)
        .and_then(|()| std::fs::rename(&written, &path))
        .with_context(|| path.display().to_string())?;
    Ok(earlier)
}
