//! The state is the fold of the journal: replay gives the same state, and no order of messages
//! breaks an invariant.

use florin_engine::state::EngineState;
use florin_engine::{Applied, Effect, Engine, Event, EventStatus};
use florin_protocol::*;
use proptest::prelude::*;

use crate::support::*;

/// A random step, valid or not.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RandomStep {
    Wait(u64),
    Enrol(u8),
    Commit(u8),
    CommitElse(u8),
    Reveal(u8),
    RevealElse(u8),
    Refused(u8),
    Provider,
    Record(bool),
    Disclosed,
    Valued,
    Failed,
    Posted,
    Final,
    Proven,
    Cancelled,
    SettlementRejected,
    Closed,
    Close,
    Archived,
}

pub(crate) fn step() -> impl Strategy<Value = RandomStep> {
    let who = 1..=5u8;
    prop_oneof![
        3 => (0..6_000u64).prop_map(RandomStep::Wait),
        2 => who.clone().prop_map(RandomStep::Enrol),
        12 => who.clone().prop_map(RandomStep::Commit),
        1 => who.clone().prop_map(RandomStep::CommitElse),
        12 => who.clone().prop_map(RandomStep::Reveal),
        1 => who.clone().prop_map(RandomStep::RevealElse),
        1 => who.prop_map(RandomStep::Refused),
        1 => Just(RandomStep::Provider),
        2 => any::<bool>().prop_map(RandomStep::Record),
        4 => Just(RandomStep::Disclosed),
        4 => Just(RandomStep::Valued),
        1 => Just(RandomStep::Failed),
        5 => Just(RandomStep::Posted),
        2 => Just(RandomStep::Final),
        2 => Just(RandomStep::Proven),
        1 => Just(RandomStep::Close),
        1 => Just(RandomStep::Cancelled),
        1 => Just(RandomStep::SettlementRejected),
        1 => Just(RandomStep::Closed),
        4 => Just(RandomStep::Archived),
    ]
}

impl EngineFixture {
    pub(crate) fn event(&self, step: RandomStep) -> Option<Event> {
        let task = self.id;
        let state = &self.engine.state().tasks[&task];
        let running = state.running().is_some();
        let valuing = state.running().is_some_and(|running| running.work_order.is_some());
        let unsettled = state.pending_settlements.keys().next().copied();
        match step {
            RandomStep::Wait(_) => Some(Event::Tick),
            RandomStep::Enrol(i) => Some(self.enrol_event(i)),
            RandomStep::Commit(i) => running.then(|| self.commit_event(i)),
            RandomStep::CommitElse(i) => running.then(|| {
                let commit = Commit { commitment: Digest([i; 32]), ..self.commit(i) };
                Event::Committed { commit: node(i).sign(commit), bond: fln("5") }
            }),
            RandomStep::Reveal(i) => running.then(|| self.reveal_event(i)),
            RandomStep::RevealElse(i) => running.then(|| {
                let header = UpdateHeader { rows: 7, ..self.header(i) };
                Event::Revealed(node(i).sign(header))
            }),
            RandomStep::Refused(i) => running.then(|| Event::UploadRejected {
                task,
                round: self.offer().scope.round,
                sender: address(i),
                code: ErrorCode::Truncated,
            }),
            RandomStep::Provider => {
                Some(Event::ProviderReady { task, provider: address(PROVIDER) })
            }
            RandomStep::Record(right) => valuing.then(|| {
                let record = self.record();
                let agrees = self.engine.own_result(record.body.order).map(|_| right);
                Event::WorkRecordReceived { record, agrees }
            }),
            RandomStep::Disclosed => running.then(|| {
                let round = self.offer().scope.round;
                Event::RowsDisclosed { task, round, rows: Digest([200 + round.0 as u8; 32]) }
            }),
            RandomStep::Valued => valuing.then(|| self.harmful_valued_event()),
            RandomStep::Failed => {
                running.then(|| Event::ValuationFailed { task, round: self.offer().scope.round })
            }
            RandomStep::Posted => unsettled.map(|round| Event::SettlementPosted { task, round }),
            RandomStep::Final => unsettled.map(|round| Event::SettlementFinal { task, round }),
            RandomStep::Proven => {
                let last = state.final_rounds.last().copied();
                last.map(|round| Event::DebitsProven { task, round })
            }
            RandomStep::Cancelled => {
                unsettled.map(|round| Event::SettlementCancelled { task, round })
            }
            RandomStep::SettlementRejected => {
                unsettled.map(|round| Event::SettlementRejected { task, round })
            }
            RandomStep::Closed => {
                state.is_over().then_some(Event::TaskClosed { task, refund: fln("1") })
            }
            RandomStep::Close => Some(Event::CloseRequested { task }),
            RandomStep::Archived => {
                self.engine.pending_effects().into_iter().find_map(|effect| match effect {
                    Effect::ArchiveRound { task, round } => Some(Event::RoundArchived {
                        task,
                        round,
                        digest: Digest([round.0 as u8; 32]),
                    }),
                    _ => None,
                })
            }
        }
    }

    /// The result of a round; in the first round one participant is debited.
    fn harmful_valued_event(&self) -> Event {
        let mut event = self.valued_event();
        if let (Event::RoundValued { result, .. }, RoundNumber(1)) =
            (&mut event, self.order().scope.round)
        {
            let score = &mut result.valuation.scores[0];
            (score.score_nano, score.excluded) = (-50_000_000, true);
        }
        event
    }

    /// Checks the invariants that no order of messages may break.
    fn check_rules(&self) {
        let state = &self.engine.state().tasks[&self.id];
        let mut paid = Amount::ZERO;
        let mut previous = Digest(self.id.0);
        let mut exposed = Vec::new();
        for (past, round) in state.rounds_in_memory.values().zip(1..) {
            let report = &past.report;
            let ended = state.rounds[round as usize - 1];
            let settled = report.has_settlement();
            assert_eq!((ended.report, ended.settled), (report.digest(), settled));
            assert_eq!(ended.model, report.model);
            assert_eq!(
                (report.scope.round, report.previous_report),
                (RoundNumber(round), previous)
            );
            assert!(report.data_total >= paid && report.data_total <= self.spec.budget.data);
            let debits = report.lines.iter().map(|line| line.debit);
            assert!(debits.into_iter().all(|debit| debit <= self.spec.budget.debit_max));
            let pays_withheld = !report.final_lines.is_empty();
            assert_eq!(settled, !report.entries.is_empty() || pays_withheld);
            assert!(!report.ends_task() || round as usize == state.rounds.len());
            assert!(settled || report.data_total == paid);
            let asked = report.entries.len() + report.missing.len();
            assert_eq!(asked, past.offer.cohort.len());
            let judged = report.entries.len() >= 2;
            assert_eq!(report.holdout.rows.len(), if judged { 10 } else { 0 });
            assert!(report.holdout.rows.iter().all(|row| !exposed.contains(row)), "{exposed:?}");
            exposed.extend(&report.holdout.rows);
            (paid, previous) = (report.data_total, past.digest);
        }
        assert!(state.rounds.len() <= 3);
        assert_eq!(state.rounds.len(), state.rounds_in_memory.len(), "no round is archived");
        // A task is closed only when every debit is taken.
        assert!(state.rounds_with_unproven_debits.is_subset(&state.final_rounds));
        let wanted = self.engine.pending_effects();
        let closes = wanted.iter().any(|effect| matches!(effect, Effect::CloseTask { .. }));
        assert!(!closes || state.rounds_with_unproven_debits.is_empty());
        if let Some(running) = state.running() {
            let open = matches!(state.phase(), TaskPhase::Committing | TaskPhase::Revealing);
            assert_eq!(running.drawn_rows.len(), if open { 0 } else { 10 });
            assert!(running.drawn_rows.iter().all(|row| !exposed.contains(row)), "{exposed:?}");
            assert!(!open || running.work_order.is_none());
        }
        let early = state.running().is_some_and(|r| r.updates.len() > r.commits.len());
        assert!(!early);
    }
}

pub(crate) fn replay(journal: &[(Timestamp, Event)]) -> Engine {
    let mut engine = Engine::new(market(), address(COORDINATOR));
    for (now, event) in journal {
        let applied = engine.apply(event, *now).unwrap();
        assert_eq!(applied.status, EventStatus::New);
    }
    engine
}

fn digest(state: &EngineState) -> Digest {
    state.digest()
}

/// The effects without those that archive rounds.
pub(crate) fn without_archive_effects(effects: Vec<Effect>) -> Vec<Effect> {
    effects.into_iter().filter(|effect| !matches!(effect, Effect::ArchiveRound { .. })).collect()
}

/// Compares a market that archives rounds with one that does not: apart from the archived rounds,
/// their states and effects are equal.
fn check_archived(world: &EngineFixture, twin: &EngineFixture) {
    let (mut state, whole) = (world.engine.state().clone(), twin.engine.state());
    let task = state.tasks.get_mut(&world.id).unwrap();
    let all = &whole.tasks[&world.id];
    for (round, past) in &task.rounds_in_memory {
        assert_eq!(all.rounds_in_memory.get(round), Some(past));
    }
    for (ended, round) in task.rounds.iter_mut().zip(1..) {
        let here = task.rounds_in_memory.contains_key(&RoundNumber(round));
        assert_eq!(ended.archive.take().is_none(), here, "round {round} is in one place");
        // A round that is not final may still need to be posted or proven.
        let settles = ended.settled && !task.final_rounds.contains(&RoundNumber(round));
        assert!(
            here || !settles && !task.rounds_with_unproven_debits.contains(&RoundNumber(round)),
            "{round}"
        );
    }
    task.rounds_in_memory.clone_from(&all.rounds_in_memory);
    state.now = whole.now;
    assert_eq!(&state, whole);
    assert_eq!(
        without_archive_effects(world.engine.pending_effects()),
        without_archive_effects(twin.engine.pending_effects())
    );
    assert_eq!(world.engine.next_deadline(), twin.engine.next_deadline());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn replaying_the_journal_gives_the_live_state(
        steps in prop::collection::vec(step(), 1..160),
    ) {
        let mut world = EngineFixture::with_published_task(5);
        let mut twin = world.clone();
        for step in steps {
            if let RandomStep::Wait(ms) = step {
                world.now = world.now.saturating_add_ms(ms);
                twin.now = world.now;
            }
            let Some(event) = world.event(step) else { continue };
            let before = digest(world.engine.state());
            let other = (!matches!(event, Event::RoundArchived { .. })).then(|| twin.apply(event.clone()));
            let applied = world.apply(event);
            if let Some(other) = other {
                let comparable = |applied: &Result<Applied, Rejection>| {
                    applied.clone().map(|applied| (applied.status, without_archive_effects(applied.effects), applied.changed_tasks))
                };
                prop_assert_eq!(comparable(&applied), comparable(&other));
            }
            match applied {
                Ok(applied) if applied.status == EventStatus::New => {
                    prop_assert_ne!(digest(world.engine.state()), before);
                }
                Ok(_) | Err(_) => prop_assert_eq!(digest(world.engine.state()), before),
            }
            twin.check_rules();
            check_archived(&world, &twin);
        }
        let again = replay(&world.journal);
        prop_assert_eq!(digest(again.state()), digest(world.engine.state()));
        prop_assert_eq!(again.pending_effects(), world.engine.pending_effects());
        prop_assert_eq!(again.next_deadline(), world.engine.next_deadline());
    }
}

#[test]
fn time_never_runs_backwards() {
    let mut world = EngineFixture::with_open_round(4);
    world.now = Timestamp(5_000);
    world.apply(world.commit_event(1)).unwrap();
    world.now = Timestamp(4_000);
    world.apply(world.commit_event(2)).unwrap();
    assert_eq!(world.engine.state().now, Timestamp(5_000));
}
