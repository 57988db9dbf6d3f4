//! The output during the rounds: a progress bar on a terminal, plain lines otherwise.

use std::io::IsTerminal;

use florin_protocol::{Report, RoundOutcome, TaskPhase, TaskView};
use indicatif::{ProgressBar, ProgressDrawTarget};

use super::outcome::nats_text;
use crate::progress::progress_bar;
use crate::show;

/// The progress of the rounds.
pub(super) struct DemoProgress {
    bar: Option<ProgressBar>,
}

impl DemoProgress {
    /// Creates the progress of a task with `rounds` rounds.
    pub(super) fn new(rounds: u32) -> Self {
        if !std::io::stderr().is_terminal() || !std::io::stdout().is_terminal() {
            return Self { bar: None };
        }
        let template = "{spinner} {pos}/{len} rounds {bar:24} {msg}";
        let bar = progress_bar(ProgressDrawTarget::stderr(), template);
        bar.set_length(rounds.into());
        Self { bar: Some(bar) }
    }

    fn line(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| anstream::println!("{text}")),
            None => anstream::println!("{text}"),
        }
    }

    /// Shows the next step of the preparation.
    pub(super) fn step(&self, what: &str) {
        match &self.bar {
            Some(bar) => bar.set_message(what.to_owned()),
            None => anstream::println!("{what}"),
        }
    }

    /// Shows the phase of the current round, on a terminal only.
    pub(super) fn phase(&self, view: &TaskView) {
        let Some(bar) = &self.bar else { return };
        let asked = view.offer.as_ref().map_or(view.enrolled as usize, |o| o.body.cohort.len());
        let done = match view.phase {
            TaskPhase::AwaitingBlobs | TaskPhase::Closing | TaskPhase::Done => String::new(),
            TaskPhase::Enrolling => format!(", {} enrolled", view.enrolled),
            TaskPhase::Committing => format!(", {} of {asked} committed", view.committed),
            TaskPhase::Revealing => format!(", {} of {asked} submitted", view.revealed),
            TaskPhase::Valuing | TaskPhase::Settling => format!(", {} updates", view.revealed),
        };
        bar.set_message(format!("round {}: {}{done}", view.round, show::phase(view.phase)));
    }

    /// Shows a completed round.
    pub(super) fn round(&self, report: &Report) -> anyhow::Result<()> {
        if let Some(bar) = &self.bar {
            bar.set_position(report.scope.round.0.into());
        }
        self.line(&show::parts(&round_line(report)?));
        Ok(())
    }

    /// Removes the bar after the last round.
    pub(super) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// The parts of the line of a round.
fn round_line(report: &Report) -> anyhow::Result<Vec<String>> {
    let round = format!("round {:>3}", report.scope.round.0);
    let (Some(valuation), Some(metrics)) = (&report.valuation, report.metrics) else {
        let why = match report.outcome {
            RoundOutcome::Abandoned(reason) => show::abandoned(reason),
            RoundOutcome::Settled | RoundOutcome::Void(_) => "no valuation".to_owned(),
        };
        return Ok(vec![round, format!("abandoned: {why}")]);
    };
    let excluded = valuation.scores.iter().filter(|score| score.excluded).count();
    let (before, after) = (valuation.loss_before_nano, metrics.loss_after_nano);
    let (before, after) = (nats_text(before.into()), nats_text(after.into()));
    let accuracy = show::accuracy(metrics.correct_after, metrics.rows);
    Ok(vec![
        round,
        format!("loss {before} → {after}"),
        format!("accuracy {accuracy:>6}"),
        format!("{} updates, {excluded} excluded", report.entries.len()),
        format!("{:>8} FLN paid", show::fln(report.data_paid()?)),
    ])
}
