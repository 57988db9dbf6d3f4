//! `florin task follow`: shows a task while it runs, until it is done.
//!
//! On a terminal the line of the current phase is redrawn below the reported rounds. Into a pipe
//! each change is one line, and with `--json` one JSON object.

use florin_participant::{ParticipantEvent, Shutdown};
use florin_protocol::{
    Amount, PayLine, Report, RoundNumber, RoundOutcome, TaskId, TaskPhase, TaskSpec, TaskView, nats,
};
use indicatif::{ProgressBar, ProgressDrawTarget};
use serde_json::{Value, json};

use super::members;
use super::show::paid;
use crate::cli::TaskFollow;
use crate::failure::Exit;
use crate::loss_text;
use crate::market::{MarketConnection, with_retries};
use crate::progress::progress_bar;
use crate::show::{self, BAD, JsonEvent, NOTE};

/// How long the coordinator holds a request while nothing changes, in milliseconds.
const POLL_MS: u64 = 2_000;

pub(super) fn run(arguments: &TaskFollow) -> anyhow::Result<Exit> {
    let (screen, shutdown) = (Screen::new(arguments.json.json), Shutdown::new());
    let mut on_event = |event: &ParticipantEvent| screen.note(&event.to_string());
    let market =
        MarketConnection::connect_with_retries(&arguments.market, &shutdown, &mut on_event)?;
    let opened = || Ok((market.task(market.find(&arguments.task)?)?, market.ledger()?));
    let (mut view, ledger) = with_retries(&shutdown, &mut on_event, opened)?;
    let task = view.id;
    // Reports before the last one are not news: `florin task show` prints all rounds.
    let (mut reported, mut shown) = (view.reported.saturating_sub(1), None);
    loop {
        for round in reported + 1..=view.reported {
            let report = || Ok(market.report(task, RoundNumber(round))?.body);
            screen.round(&view.spec, &with_retries(&shutdown, &mut on_event, report)?)?;
        }
        reported = view.reported;
        let books = with_retries(&shutdown, &mut on_event, || Ok(ledger.task(task)?))?;
        let locked = books.map(|books| books.data_locked.plus(books.infrastructure_locked));
        let state = TaskProgress::new(&view, locked.transpose()?);
        if shown.as_ref() != Some(&state) {
            screen.state(&state);
            shown = Some(state);
        }
        if view.phase == TaskPhase::Done {
            screen.finish();
            return Ok(Exit::Done);
        }
        let next = || Ok(market.task_after(task, view.sequence, POLL_MS)?);
        view = with_retries(&shutdown, &mut on_event, next)?;
    }
}

/// The state of a task between two reports.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TaskProgress {
    task: TaskId,
    phase: TaskPhase,
    round: RoundNumber,
    rounds: u32,
    reported: u32,
    enrolled: u32,
    /// Number of participants selected for the round; `None` before its offer.
    selected: Option<usize>,
    committed: u32,
    updates: u32,
    /// Eligible participants that the next round still needs.
    waits_for: u32,
    /// The remaining escrow; `None` if the ledger does not know the task.
    locked: Option<Amount>,
}

impl TaskProgress {
    fn new(view: &TaskView, locked: Option<Amount>) -> Self {
        Self {
            task: view.id,
            phase: view.phase,
            round: view.round,
            rounds: view.spec.rounds.count,
            reported: view.reported,
            enrolled: view.enrolled,
            selected: view.offer.as_ref().map(|offer| offer.body.cohort.len()),
            committed: view.committed,
            updates: view.revealed,
            waits_for: members::missing(view),
            locked,
        }
    }

    /// The state in one line.
    fn line(&self) -> String {
        let Self { phase, round, rounds, enrolled, committed, updates, .. } = self;
        let of = self.selected.map_or_else(String::new, |selected| format!(" of {selected}"));
        let work = match phase {
            TaskPhase::Committing => format!(", {committed}{of} committed"),
            TaskPhase::Revealing | TaskPhase::Valuing | TaskPhase::Settling => {
                format!(", {updates}{of} updates")
            }
            TaskPhase::Enrolling if self.waits_for > 0 => {
                format!(", waits for {} more eligible", self.waits_for)
            }
            TaskPhase::AwaitingBlobs
            | TaskPhase::Enrolling
            | TaskPhase::Closing
            | TaskPhase::Done => String::new(),
        };
        let locked = self
            .locked
            .map_or("an unknown amount".to_owned(), |left| format!("{} FLN", show::fln(left)));
        format!(
            "round {round} of {rounds}: {}, {enrolled} enrolled{work}; {locked} left",
            show::phase(*phase)
        )
    }

    fn as_json(&self) -> JsonEvent<'static> {
        let fields = json!({
            "task": self.task,
            "phase": self.phase,
            "round": self.round,
            "rounds": self.rounds,
            "reported": self.reported,
            "enrolled": self.enrolled,
            "selected": self.selected,
            "committed": self.committed,
            "updates": self.updates,
            "waits_for": self.waits_for,
            "locked": self.locked.map(show::units),
        });
        JsonEvent { event: "state", fields }
    }
}

/// A reported round: the loss, the accuracy and the payments, then one line for each update.
fn round_lines(spec: &TaskSpec, report: &Report) -> anyhow::Result<Vec<String>> {
    let (round, unit) = (report.scope.round, loss_text::loss_units(spec));
    let (Some(valuation), Some(metrics)) = (&report.valuation, report.metrics) else {
        if report.ends_task() {
            let paid = show::fln(paid(report)?);
            return Ok(vec![format!("the task ended: {paid} FLN that were withheld are paid")]);
        }
        let why = match report.outcome {
            RoundOutcome::Abandoned(reason) => show::abandoned(reason),
            RoundOutcome::Settled | RoundOutcome::Void(_) => "no valuation".to_owned(),
        };
        return Ok(vec![format!("round {round} abandoned: {why}")]);
    };
    let mut lines = vec![format!(
        "round {round} reported: loss {} → {} {unit}, accuracy {}, {} FLN paid",
        nats(valuation.loss_before_nano.into()),
        nats(metrics.loss_after_nano.into()),
        loss_text::accuracy_of(spec, metrics.correct_after, metrics.rows),
        show::fln(paid(report)?),
    )];
    for (score, line) in valuation.scores.iter().zip(&report.lines) {
        let debit = match line.debit.is_zero() {
            true => String::new(),
            false => format!(", debited {} FLN", show::fln(line.debit)),
        };
        lines.push(format!(
            "  {}: score {} {unit}, {} FLN ({}){debit}",
            score.account.short(),
            nats(score.score_nano.into()),
            show::fln(line.payout),
            show::reason(line.reason),
        ));
    }
    for line in report.final_lines.iter().filter(|line| !line.payout.is_zero()) {
        let (account, pay) = (line.account.short(), show::fln(line.payout));
        lines.push(format!("  {account}: {pay} FLN, withheld in earlier rounds"));
    }
    Ok(lines)
}

fn earlier_json(line: &PayLine) -> Value {
    json!({ "account": line.account, "payout": show::units(line.payout) })
}

fn round_json(task: TaskId, report: &Report) -> anyhow::Result<JsonEvent<'static>> {
    let scores = report.valuation.iter().flat_map(|valuation| &valuation.scores);
    let updates: Vec<Value> = scores
        .zip(&report.lines)
        .map(|(score, line)| {
            json!({
                "account": score.account,
                "score_nano": score.score_nano,
                "excluded": score.excluded,
                "payout": show::units(line.payout),
                "debit": show::units(line.debit),
            })
        })
        .collect();
    let fields = json!({
        "task": task,
        "round": report.scope.round,
        "outcome": report.outcome,
        "loss_before_nano": report.valuation.as_ref().map(|v| v.loss_before_nano),
        "loss_after_nano": report.metrics.map(|m| m.loss_after_nano),
        "correct_after": report.metrics.map(|m| m.correct_after),
        "rows": report.metrics.map(|m| m.rows),
        "paid": show::units(paid(report)?),
        "updates": updates,
        "paid_from_earlier_rounds": report.final_lines.iter().map(earlier_json).collect::<Vec<_>>(),
    });
    Ok(JsonEvent { event: "round", fields })
}

/// The output: a redrawn line on a terminal, lines of text, or lines of JSON.
enum Screen {
    Terminal(ProgressBar),
    Lines,
    Json,
}

impl Screen {
    fn new(json: bool) -> Self {
        if json {
            return Self::Json;
        }
        let template = "{spinner} {pos}/{len} {bar:12} {msg}";
        let bar = progress_bar(ProgressDrawTarget::stdout(), template);
        if bar.is_hidden() { Self::Lines } else { Self::Terminal(bar) }
    }

    fn state(&self, state: &TaskProgress) {
        match self {
            Self::Json => show::json_line(&state.as_json()),
            Self::Lines => anstream::println!("{}", state.line()),
            Self::Terminal(bar) => {
                bar.set_length(state.rounds.into());
                bar.set_position(state.reported.into());
                bar.set_message(state.line());
            }
        }
    }

    fn round(&self, spec: &TaskSpec, report: &Report) -> anyhow::Result<()> {
        if matches!(self, Self::Json) {
            show::json_line(&round_json(spec.id(), report)?);
            return Ok(());
        }
        let style = match report.outcome {
            RoundOutcome::Settled => anstyle::Style::new(),
            RoundOutcome::Void(_) | RoundOutcome::Abandoned(_) => BAD,
        };
        let lines = round_lines(spec, report)?;
        let print = || lines.iter().for_each(|line| anstream::println!("{style}{line}{style:#}"));
        self.print(print);
        Ok(())
    }

    /// Prints a remark on standard error.
    fn note(&self, text: &str) {
        self.print(|| anstream::eprintln!("{NOTE}{text}{NOTE:#}"));
    }

    fn print(&self, print: impl FnOnce()) {
        match self {
            Self::Terminal(bar) => bar.suspend(print),
            Self::Lines | Self::Json => print(),
        }
    }

    /// Leaves the last state on the terminal.
    fn finish(&self) {
        if let Self::Terminal(bar) = self {
            bar.abandon();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(phase: TaskPhase) -> TaskProgress {
        TaskProgress {
            task: TaskId([7; 32]),
            phase,
            round: RoundNumber(2),
            rounds: 8,
            reported: 1,
            enrolled: 4,
            selected: Some(3),
            committed: 2,
            updates: 1,
            waits_for: 0,
            locked: Some("12.5".parse().unwrap()),
        }
    }

    #[test]
    fn a_state_is_one_line_with_participants_and_remaining_money() {
        for (phase, line) in [
            (
                TaskPhase::Committing,
                "round 2 of 8: training, 4 enrolled, 2 of 3 committed; 12.5000 FLN left",
            ),
            (
                TaskPhase::Revealing,
                "round 2 of 8: uploading, 4 enrolled, 1 of 3 updates; 12.5000 FLN left",
            ),
            (TaskPhase::Enrolling, "round 2 of 8: enrolling, 4 enrolled; 12.5000 FLN left"),
        ] {
            assert_eq!(state(phase).line(), line);
        }
        let waiting = TaskProgress { waits_for: 2, ..state(TaskPhase::Enrolling) };
        let line = waiting.line();
        assert!(line.contains("enrolling, 4 enrolled, waits for 2 more eligible; "), "{line}");
    }
}
