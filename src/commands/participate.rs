//! `florin participate`: trains for a task on local rows, until the task has ended and all earnings
//! are withdrawn.

use std::io::{BufRead, IsTerminal, Read};
use std::path::{Path, PathBuf};

use anyhow::Context;
use florin_learning::privacy::{ClipAndNoise, Delta, PrivacyError, RowPrivacy};
use florin_learning::ranks::Ranks;
use florin_learning::trainer::TrainerEngine;
use florin_learning::{DataSource, Dataset, Engine};
use florin_ledger::MemberShare;
use florin_participant::{
    AgentError, Backoff, BehaviourKind, FeedCounts, ParticipantConfig, ParticipantContext,
    ParticipantEvent, ParticipationQuote, ParticipationSummary, PrivacyConfig, RowFeed, Shutdown,
    Supervision, participate, task_blob,
};
use florin_protocol::{
    Amount, Digest, Invitation, InvitationTextError, Micro, TaskId, TaskSpec, WalletSigner,
};
use serde_json::json;

use super::event_printer::EventPrinter;
use super::rented_rounds::{RentSummary, Renter};
use super::silo::counted_members;
use super::{participate_all, producer, ranks, rented_rounds, silo};
use crate::cli::{Experiment, NoiseArg, Participate, RowSource};
use crate::commands::wallet;
use crate::compose;
use crate::failure::{Exit, Failure};
use crate::market::{MarketConnection, with_retries};
use crate::show::{self, JsonEvent};
use crate::task_file::{load_for_task, select_rows};

/// Long-poll timeout in milliseconds; also the longest delay of a shutdown.
pub(super) const POLL_MS: u64 = 2_000;
/// The largest ε of a participation with noise, unless --epsilon-max is given.
const EPSILON_MAX: Micro = Micro(8_000_000);
/// Longest answer on the terminal and longest file with an invitation, in bytes.
const ANSWER_BYTES_MAX: u64 = 4_096;

pub(super) fn run(arguments: &Participate) -> anyhow::Result<Exit> {
    if let Some(policy) = &arguments.policy {
        return participate_all::run(arguments, policy);
    }
    let task = arguments.task.as_deref().context("clap requires --task or --all")?;
    let place = ranks::place()?;
    let is_first = place.as_ref().is_none_or(|place| place.rank == 0);
    let wallet = is_first.then(|| wallet::open(&arguments.wallet)).transpose()?;
    let shutdown = stop_on_request()?;
    let printer = EventPrinter::new(&arguments.wallet.wallet, arguments.json);
    let mut print = |event: &ParticipantEvent| printer.print(event);
    let market = MarketConnection::connect_with_retries(&arguments.market, &shutdown, &mut print)?;
    let market = market.with_weights(&arguments.weights);
    let view = || Ok(market.task(market.find(task)?)?);
    let view = with_retries(&shutdown, &mut print, view)?;
    let rented = rented_rounds::read(arguments, &market, &view.spec)?;
    ranks::check(arguments, &view.spec, place.as_ref())?;
    producer::check(arguments, place.as_ref())?;
    let is_produced = matches!(arguments.data, Some(RowSource::Producer(_)));
    let has_rows = ranks::has_rows(arguments, place.as_ref()) && !is_produced;
    let data = has_rows.then(|| rows(arguments, &market, &view.spec)).transpose()?;
    if is_first {
        require_policy(arguments)?;
    }
    let size = place.as_ref().map(|place| place.size);
    let serves = place.as_ref().is_some_and(|place| place.rank > 0);
    // Loaded before the ranks meet: rank 0 deposits for ranks that can compute.
    let graph = || ranks::model(arguments, &market, &view.spec);
    let served = serves.then(|| with_retries(&shutdown, &mut print, graph)).transpose()?;
    let join = |place| ranks::join(arguments, &view.spec, data.as_ref(), place);
    let ranks = match (place.map(join).transpose()?, served) {
        (Some(ranks), Some(model)) => {
            return ranks::serve(arguments, data.as_ref(), &model, ranks, &shutdown);
        }
        (ranks, _) => ranks,
    };
    let invitation = arguments.invitation.as_deref().map(read_invitation).transpose()?;
    let privacy = privacy(&arguments.noise)?;
    let engine = engine(arguments, &view.spec, (&arguments.accept_model, ranks))?;
    let wallet = wallet.context("rank 0 has a wallet")?;
    let ledger = || market.signing_ledger(&wallet, &arguments.wallet);
    let ledger = with_retries(&shutdown, &mut print, ledger)?;
    let renter = Renter { market: &market, wallet: &wallet, ledger: &*ledger };
    let sized = (engine, data.as_ref().map(Dataset::rows));
    let mut engine = rented_rounds::engine(rented.as_ref(), arguments, sized, (renter, &shutdown))?;
    let members = || silo::check_participation(arguments, &*ledger, view.id, wallet.address());
    announce(arguments, view.id, &printer, &with_retries(&shutdown, &mut print, members)?);
    let mut behaviour = kind(arguments.experiment).behaviour();
    // From here on rows are taken: nothing but the market can refuse the participation.
    let feed = producer::feed(arguments, &view.spec)?;
    let data = feed.as_ref().map(|feed| feed.empty_rows().clone()).or(data);
    let data = data.context("rank 0 has rows")?;
    let config = ParticipantConfig { invitation, privacy, ..config(arguments, view.id, size) };
    let parts = ParticipantContext {
        wallet: &wallet,
        client: &market,
        ledger: &*ledger,
        engine: &mut *engine,
        data: &data,
        producer: feed.as_ref(),
        behaviour: &mut *behaviour,
        consent: &mut |quote| {
            arguments.max_bond.is_some() && quote.is_arbiter_accepted || agrees(quote)
        },
    };
    let work = || participate(&config, parts, &shutdown, &mut print);
    let outcome = rented_rounds::beside(rented.as_ref(), arguments, (renter, &shutdown), work)??;
    let rent = rented_rounds::spent(rented.as_ref(), arguments, (renter, engine));
    summary(&outcome, (feed.as_ref().map(RowFeed::counts), rent), &printer)
}

/// Prints the members of the split that receives the pay, and the command that follows the task.
fn announce(
    arguments: &Participate,
    task: TaskId,
    printer: &EventPrinter,
    members: &[MemberShare],
) {
    printer.print_split(members);
    if !arguments.json.json {
        let (task, url) = (task.short(), &arguments.market.market);
        show::hint(&format!("Follow the task live: florin task follow {task} --market {url}"));
    }
}

/// The settings of a participation by `size` processes, without an invitation and noise.
pub(super) fn config(
    arguments: &Participate,
    task: TaskId,
    size: Option<u32>,
) -> ParticipantConfig {
    ParticipantConfig {
        folder: state_folder(arguments.state.as_deref(), &arguments.wallet.wallet),
        task,
        seed: arguments.seed,
        bond_max: arguments.max_bond,
        pay_min: arguments.min_pay,
        invitation: None,
        arbiters: arguments.arbiters.policy(),
        asks_for_arbiter: asks(arguments),
        accepted_models: arguments.accept_model.clone(),
        continues_on_alarm: arguments.continue_on_alarm,
        execution: arguments.execution.settings(size),
        processes: size.unwrap_or(1),
        accepts_slow_training: arguments.accept_slow_training,
        privacy: None,
        supervision: Supervision::default(),
        poll_ms: POLL_MS,
        backoff: Backoff::default(),
    }
}

/// The engine, with the participant's own trainer if there is one, or the one that is the task's
/// model: consent to the model is consent to its code.
pub(super) fn engine(
    arguments: &Participate,
    spec: &TaskSpec,
    (accepted, ranks): (&[Digest], Option<Ranks>),
) -> anyhow::Result<Box<dyn Engine>> {
    let scratch = state_folder(arguments.state.as_deref(), &arguments.wallet.wallet);
    let secrets = [arguments.wallet.secrets(), vec![scratch.clone()]].concat();
    let mut host = arguments.trainer.host.host(secrets, scratch);
    if let Some(trainer) = spec.model.trainer() {
        if arguments.noise.noise.is_some() {
            let message = "the task's model is a trainer, which has no gradients of rows: take part \
                           without --clip and --noise";
            return Err(Failure::input("NOISE_UNSUPPORTED", message).into());
        }
        if accepted.contains(&spec.consent_digest()) {
            host.accepted.push(trainer.graph.digest.0);
            compose::check_sandbox(&host)?;
        }
    }
    let options = ranks::options(ranks, &host.scratch, spec.id(), arguments.json.json);
    let engine = TrainerEngine::new(host, compose::engine_with(arguments.engine, options)?);
    Ok(Box::new(match &arguments.trainer.trainer {
        None => engine,
        Some(code) => engine.with_own(code).map_err(compose::trainer_refused)?,
    }))
}

/// Whether a person can answer.
fn asks(arguments: &Participate) -> bool {
    let is_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    is_terminal && !arguments.json.json
}

/// Without a terminal no person can answer: then `--max-bond` does, and `--arbiter`.
fn require_policy(arguments: &Participate) -> anyhow::Result<()> {
    if arguments.max_bond.is_some() || asks(arguments) {
        return Ok(());
    }
    let message = "without a terminal or with --json, --max-bond is required: the most FLN to \
        deposit as bond in total, for example --max-bond 20";
    Err(Failure::input("MAX_BOND_REQUIRED", message).into())
}

/// Clip and noise, if they are wanted.
pub(super) fn privacy(wanted: &NoiseArg) -> anyhow::Result<Option<PrivacyConfig>> {
    let (Some(clip), Some(noise)) = (wanted.clip, wanted.noise) else { return Ok(None) };
    let invalid = |error: PrivacyError| Failure::input("INVALID_NOISE", error.to_string());
    let settings = ClipAndNoise { clip_micro: clip.0, noise_micro: noise.0 };
    let noise = RowPrivacy::try_from(settings).map_err(invalid)?;
    let delta = Delta::try_from(wanted.delta).map_err(invalid)?;
    let epsilon_max = wanted.epsilon_max.unwrap_or(EPSILON_MAX).into();
    Ok(Some(PrivacyConfig { noise, delta, epsilon_max }))
}

/// Asks on the terminal whether to deposit the bond. The quote was printed before.
fn agrees(quote: &ParticipationQuote) -> bool {
    let (bond, arbiter) = (show::fln(quote.bond), quote.arbiter_text());
    anstream::eprint!("Deposit a bond of {bond} FLN under arbiter {arbiter} and take part? [y/N] ");
    is_yes()
}

/// Reads the answer to a question on the terminal. No answer is no.
pub(super) fn is_yes() -> bool {
    let mut answer = String::new();
    let read = std::io::stdin().lock().take(ANSWER_BYTES_MAX).read_line(&mut answer);
    read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}

/// An invitation as text, or the file that has it.
fn read_invitation(text: &str) -> anyhow::Result<Invitation> {
    let invalid = |error: InvitationTextError| {
        Failure::input("INVALID_INVITATION", format!("--invitation: {error}"))
    };
    let error = match text.parse() {
        Ok(invitation) => return Ok(invitation),
        Err(error) => error,
    };
    let mut read = String::new();
    match std::fs::File::open(text) {
        Ok(file) => {
            file.take(ANSWER_BYTES_MAX).read_to_string(&mut read).context(text.to_owned())?
        }
        Err(_) => {
            let message = format!(
                "--invitation {text:?} is neither an invitation ({error}) nor a file that can be read: \
                 give the text that `florin task invite` printed, or the path of a file with it"
            );
            return Err(Failure::input("INVALID_INVITATION", message).into());
        }
    };
    Ok(read.parse().map_err(invalid)?)
}

/// Ctrl-C and SIGTERM stop the work at the next safe point.
pub(super) fn stop_on_request() -> anyhow::Result<Shutdown> {
    let shutdown = Shutdown::new();
    let asked = shutdown.clone();
    ctrlc::set_handler(move || asked.request())?;
    Ok(shutdown)
}

/// The rows to train on, encoded as the task declares.
fn rows(
    arguments: &Participate,
    market: &MarketConnection,
    spec: &TaskSpec,
) -> anyhow::Result<Dataset> {
    let shard = arguments.shard.clone().map(|file| DataSource::Florin { file });
    let files = match &arguments.data {
        Some(RowSource::Files(files)) => Some(files.clone()),
        _ => None,
    };
    let Some(source) = shard.or(files) else {
        let message = "no training data: set --data or --shard";
        return Err(Failure::input("NO_DATA", message).into());
    };
    let (task, model) = (spec.id(), spec.consent_digest());
    if spec.tokenizer().is_some() && !arguments.accept_model.contains(&model) {
        // No part of the buyer's is used before consent, the tokenizer included.
        return Err(AgentError::ModelNotDerived { task, model }.into());
    }
    let folder = state_folder(arguments.state.as_deref(), &arguments.wallet.wallet);
    let data = load_for_task(spec, &source, &|blob| Ok(task_blob(&folder, market, blob)?))?;
    match &arguments.rows {
        None => Ok(data),
        Some(range) => select_rows(&data, range.clone())
            .map_err(|right| Failure::input("INVALID_DATA", format!("--rows: {right}")).into()),
    }
}

fn kind(experiment: Option<Experiment>) -> BehaviourKind {
    match experiment {
        None => BehaviourKind::Honest,
        Some(Experiment::Noise) => BehaviourKind::Noise,
        Some(Experiment::Flip) => BehaviourKind::Flipped,
        Some(Experiment::Idle) => BehaviourKind::Idle,
    }
}

/// The directory for persistent state: the given one, or a folder next to the wallet.
pub(super) fn state_folder(named: Option<&Path>, wallet: &Path) -> PathBuf {
    named.map_or_else(|| wallet.with_extension("state"), Path::to_owned)
}

fn summary(
    outcome: &ParticipationSummary,
    (rows, rent): (Option<FeedCounts>, Option<RentSummary>),
    printer: &EventPrinter,
) -> anyhow::Result<Exit> {
    let earned = Amount::total(outcome.statements.iter().map(|statement| statement.payout))?;
    if printer.is_json() {
        let fields = json!({
            "account": outcome.account,
            "rounds": outcome.statements.len(),
            "earned": show::units(earned),
            "withdrawn": show::units(outcome.claimed),
            "members": printer.members(),
            "alarms": outcome.alarms,
            "epsilon_micro": outcome.epsilon,
            "rows": rows,
            "rent": rent.map(RentSummary::to_json),
        });
        printer.print_json(&JsonEvent { event: "summary", fields });
    } else {
        anstream::println!();
        let [earned, withdrawn] = pay_facts(earned, outcome.claimed, printer.members());
        let mut facts = vec![
            ("account", outcome.account.to_string()),
            ("rounds", outcome.statements.len().to_string()),
            earned,
            withdrawn,
            ("alarms", outcome.alarms.to_string()),
        ];
        facts.extend(outcome.epsilon.map(|epsilon| ("ε for one row", epsilon.to_string())));
        facts.extend(rows.map(|rows| ("rows", rows.to_string())));
        facts.extend(rent.iter().flat_map(RentSummary::facts));
        show::facts(&facts);
    }
    Ok(if outcome.alarms > 0 { Exit::Negative } else { Exit::Done })
}

/// The pay of a participation; `members` are those of the split that receives it.
fn pay_facts(earned: Amount, claimed: Amount, members: usize) -> [(&'static str, String); 2] {
    let [earned, claimed] = [earned, claimed].map(|amount| format!("{} FLN", show::fln(amount)));
    if members == 0 {
        return [("earned", earned), ("withdrawn now", claimed)];
    }
    let to = format!("to the {} of the split", counted_members(members));
    [("earned", format!("{earned}, {to}")), ("paid now", format!("{claimed}, {to}"))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pay_of_a_silo_is_shown_as_that_of_its_members() {
        let pay: Amount = "421".parse().unwrap();
        let alone = pay_facts(pay, pay, 0);
        assert_eq!(alone[1], ("withdrawn now", format!("{} FLN", show::fln(pay))));
        let [earned, paid] = pay_facts(pay, pay, 2);
        for fact in [earned, paid] {
            assert_ne!(fact.0, "withdrawn now");
            assert!(fact.1.contains("to the 2 members of the split"), "{fact:?}");
        }
    }
}
