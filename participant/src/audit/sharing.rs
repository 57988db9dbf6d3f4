//! The audit of participants that a task shares with others of its coordinator: a busy one must have
//! worked for the task that its standing names, and one that is left to another task must be one of
//! more than enough.

use std::collections::{BTreeMap, BTreeSet};

use florin_protocol::{
    Address, Candidates, Offer, Report, RoundNumber, Standing, TaskId, TaskSpec, Timestamp,
};
use florin_work::Mismatch;

use super::{AuditError, Auditor};
use crate::client::ClientError;
use crate::report_check::mismatch;

/// Most other tasks whose rounds are read for one round.
const OTHER_TASKS_MAX: usize = 16;

/// The contradictions that the candidates show by themselves.
pub(super) fn contradictions(spec: &TaskSpec, candidates: &Candidates) -> Vec<Mismatch> {
    let mut found = Vec::new();
    let id = spec.id();
    let standings = || candidates.accounts.iter().map(|(account, one)| (account, one.standing));
    for (account, standing) in standings() {
        if matches!(standing, Standing::Busy(other) | Standing::Reserved(other) if other == id) {
            found.push(mismatch(line(*account), &format!("{standing:?}"), &"another task"));
        }
    }
    let count = |is: fn(Standing) -> bool| standings().filter(|(_, one)| is(*one)).count();
    let reserved = count(|one| matches!(one, Standing::Reserved(_)));
    let eligible = count(|one| one == Standing::Eligible);
    let places = usize::try_from(spec.rounds.selection_size()).unwrap_or(usize::MAX);
    if reserved > 0 && eligible < places {
        let stated = format!("{reserved} left to other tasks, {eligible} eligible");
        found.push(mismatch("candidates.accounts", &stated, &format!("{places} eligible")));
    }
    found
}

fn line(account: Address) -> String {
    format!("candidates.accounts[{account}].standing")
}

/// A round of another task that was open at a moment.
enum OpenRound {
    /// It has a report.
    Reported(Box<Report>),
    /// It still runs: its cohort is known, its commits are not.
    Running(Vec<Address>),
}

impl OpenRound {
    /// Whether it waited for the account's commit at the moment.
    fn waits_for(&self, account: Address, at: Timestamp) -> bool {
        match self {
            Self::Running(cohort) => cohort.contains(&account),
            Self::Reported(report) => {
                let commits = report.commits.iter().zip(&report.times.commits);
                let committed = commits.filter(|((sender, _), _)| *sender == account);
                committed.into_iter().any(|(_, time)| *time >= at)
                    || report.missing.iter().any(|(missing, _)| *missing == account)
            }
        }
    }
}

impl Auditor<'_> {
    /// Checks that each busy account was asked by a round that was open when this one opened, and
    /// had not committed to it.
    pub(super) fn check_busy(
        &mut self,
        offer: &Offer,
        candidates: &Candidates,
    ) -> Result<Vec<Mismatch>, AuditError> {
        let mut by_task: BTreeMap<TaskId, Vec<Address>> = BTreeMap::new();
        let (mut found, mut reserved) = (Vec::new(), BTreeSet::new());
        for (account, one) in &candidates.accounts {
            match one.standing {
                Standing::Busy(other) => by_task.entry(other).or_default().push(*account),
                Standing::Reserved(other) => drop(reserved.insert(other)),
                _ => {}
            }
        }
        if !reserved.is_empty() || by_task.len() > OTHER_TASKS_MAX {
            let text = "which other tasks waited for shared participants when a round opened, and \
                        which accounts stated a limit: only the coordinator has both";
            if !self.unverifiable.iter().any(|line| line == text) {
                self.unverifiable.push(text.to_owned());
            }
        }
        for (other, accounts) in by_task.into_iter().take(OTHER_TASKS_MAX) {
            let open = self.round_at(other, offer.opened)?;
            let is_free = |account: &Address| {
                open.as_ref().is_none_or(|open| !open.waits_for(*account, offer.opened))
            };
            let free = accounts.into_iter().filter(is_free);
            let stated = format!("busy for {other}");
            found.extend(free.map(|account| mismatch(line(account), &stated, &"free")));
        }
        Ok(found)
    }

    /// The round of another task whose commits were open at a moment.
    fn round_at(&self, task: TaskId, at: Timestamp) -> Result<Option<OpenRound>, AuditError> {
        let view = match self.client.task(task) {
            Err(ClientError::Rejected(_)) => return Ok(None),
            other => other?,
        };
        let (mut before, mut after) = (0, view.reported.saturating_add(1));
        let mut last = None;
        // The last reported round that opened by then.
        while after - before > 1 {
            let middle = before + (after - before) / 2;
            let report = self.client.report(task, RoundNumber(middle))?.body;
            if report.times.opened <= at {
                (before, last) = (middle, Some(report));
            } else {
                after = middle;
            }
        }
        if let Some(report) = last.filter(|report| report.times.commits_closed >= at) {
            return Ok(Some(OpenRound::Reported(Box::new(report))));
        }
        let running = view.offer.map(|offer| offer.body).filter(|offer| offer.opened <= at);
        Ok(running.map(|offer| OpenRound::Running(offer.cohort)))
    }
}

#[cfg(test)]
mod tests {
    use florin_protocol::{
        AbandonReason, Amount, Candidate, Digest, MissingReason, ReportInputs, RoundScope,
        RoundTimes, close_round,
    };

    use super::*;

    fn account(number: u8) -> Address {
        Address([number; 20])
    }

    /// The report of a round without commits.
    fn report() -> Report {
        let spec = TaskSpec::example();
        let round = RoundNumber::FIRST;
        let offer = Offer {
            scope: RoundScope { market: spec.market, task: spec.id(), round },
            base_model: spec.base_model,
            previous_report: Digest(spec.id().0),
            cohort: Vec::new(),
            reasons: Vec::new(),
            candidates: Digest::default(),
            opened: Timestamp(0),
            commit_by: Timestamp(1),
            reveal_by: Timestamp(2),
            pool: Amount::ZERO,
        };
        let inputs = ReportInputs {
            spec: &spec,
            offer: &offer,
            previous_report: None,
            commits: &[],
            entries: &[],
            times: &RoundTimes::default(),
            missing: &[],
            holdout_rows: &[],
            result: Err(AbandonReason::ValuationFailed),
            verified_work: &[],
        };
        close_round(&inputs).unwrap()
    }

    fn candidates(standings: &[Standing]) -> Candidates {
        let one = |(at, standing): (usize, &Standing)| {
            (account(at as u8), Candidate { standing: *standing, quote_ms: 0 })
        };
        let accounts = standings.iter().enumerate().map(one).collect();
        Candidates { seed: Digest::default(), accounts }
    }

    #[test]
    fn participants_are_left_to_another_task_only_beyond_all_places() {
        let mut spec = TaskSpec::example();
        spec.rounds.cohort_target = 2;
        spec.rounds.over_selection = 1;
        let other = TaskId([9; 32]);
        let (eligible, reserved) = (Standing::Eligible, Standing::Reserved(other));
        let count = |standings: &[Standing]| contradictions(&spec, &candidates(standings)).len();
        assert_eq!(count(&[eligible, eligible, eligible, reserved]), 0);
        assert_eq!(count(&[eligible, eligible, Standing::Newcomer, reserved]), 1);
        assert_eq!(count(&[eligible, Standing::Busy(other)]), 0);
        assert_eq!(count(&[eligible, Standing::Busy(spec.id())]), 1, "its own round");
    }

    #[test]
    fn an_account_works_for_a_round_until_its_commit() {
        let mut report = report();
        report.times.opened = Timestamp(10);
        report.times.commits_closed = Timestamp(30);
        report.commits = vec![(account(1), Digest::default()), (account(2), Digest::default())];
        report.times.commits = vec![Timestamp(15), Timestamp(25)];
        report.missing = vec![(account(3), MissingReason::NoCommit)];
        let open = OpenRound::Reported(Box::new(report));
        let busy: Vec<u8> = (0..5).filter(|i| open.waits_for(account(*i), Timestamp(20))).collect();
        assert_eq!(busy, [2, 3]);
        let running = OpenRound::Running(vec![account(4)]);
        assert!(running.waits_for(account(4), Timestamp(20)));
        assert!(!running.waits_for(account(1), Timestamp(20)));
    }
}
