//! The state is the fold of the journal: replay gives the same state, and no order of messages
//! breaks an invariant.

use florin_engine::state::State;
use florin_engine::{Applied, Effect, Engine, Event, Verdict};
use florin_protocol::*;
use proptest::prelude::*;

use crate::support::*;

/// A random step, valid or not.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
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
    Unpostable,
    Closed,
    Close,
    Kept,
}

pub(crate) fn step() -> impl Strategy<Value = Step> {
    let who = 1..=5u8;
    prop_oneof![
        3 => (0..6_000u64).prop_map(Step::Wait),
        2 => who.clone().prop_map(Step::Enrol),
        12 => who.clone().prop_map(Step::Commit),
        1 => who.clone().prop_map(Step::CommitElse),
        12 => who.clone().prop_map(Step::Reveal),
        1 => who.clone().prop_map(Step::RevealElse),
        1 => who.prop_map(Step::Refused),
        1 => Just(Step::Provider),
        2 => any::<bool>().prop_map(Step::Record),
        4 => Just(Step::Disclosed),
        4 => Just(Step::Valued),
        1 => Just(Step::Failed),
        5 => Just(Step::Posted),
        2 => Just(Step::Final),
        2 => Just(Step::Proven),
        1 => Just(Step::Close),
        1 => Just(Step::Cancelled),
        1 => Just(Step::Unpostable),
        1 => Just(Step::Closed),
        4 => Just(Step::Kept),
    ]
}

impl World {
    pub(crate) fn event(&self, step: Step) -> Option<Event> {
        let task = self.id;
        let state = &self.engine.state().tasks[&task];
        let running = state.running().is_some();
        let valuing = state.running().is_some_and(|running| running.order.is_some());
        let unsettled = state.unsettled.keys().next().copied();
        match step {
            Step::Wait(_) => Some(Event::Tick),
            Step::Enrol(i) => Some(self.enrolment(i)),
            Step::Commit(i) => running.then(|| self.committed(i)),
            Step::CommitElse(i) => running.then(|| {
                let commit = Commit { commitment: Digest([i; 32]), ..self.commit(i) };
                Event::Committed { commit: node(i).sign(commit), bond: fln("5") }
            }),
            Step::Reveal(i) => running.then(|| self.revealed(i)),
            Step::RevealElse(i) => running.then(|| {
                let header = UpdateHeader { rows: 7, ..self.header(i) };
                Event::Revealed(node(i).sign(header))
            }),
            Step::Refused(i) => running.then(|| Event::Refused {
                task,
                round: self.offer().scope.round,
                sender: address(i),
                code: ErrorCode::Truncated,
            }),
            Step::Provider => Some(Event::ProviderReady { task, provider: address(PROVIDER) }),
            Step::Record(right) => valuing.then(|| {
                let record = self.record();
                let agrees = self.engine.held_result(record.body.order).map(|_| right);
                Event::WorkRecorded { record, agrees }
            }),
            Step::Disclosed => running.then(|| {
                let round = self.offer().scope.round;
                Event::Disclosed { task, round, shown: Digest([200 + round.0 as u8; 32]) }
            }),
            Step::Valued => valuing.then(|| self.harmed()),
            Step::Failed => {
                running.then(|| Event::ValuationFailed { task, round: self.offer().scope.round })
            }
            Step::Posted => unsettled.map(|round| Event::SettlementPosted { task, round }),
            Step::Final => unsettled.map(|round| Event::SettlementFinal { task, round }),
            Step::Proven => {
                let last = state.finalised.last().copied();
                last.map(|round| Event::DebitsProven { task, round })
            }
            Step::Cancelled => unsettled.map(|round| Event::SettlementCancelled { task, round }),
            Step::Unpostable => unsettled.map(|round| Event::SettlementRefused { task, round }),
            Step::Closed => state.is_over().then_some(Event::Closed { task, refund: fln("1") }),
            Step::Close => Some(Event::CloseRequested { task }),
            Step::Kept => self.engine.outstanding().into_iter().find_map(|effect| match effect {
                Effect::Keep { task, round } => {
                    Some(Event::Kept { task, round, digest: Digest([round.0 as u8; 32]) })
                }
                _ => None,
            }),
        }
    }

    /// The result of a round; in the first round one participant is debited.
    fn harmed(&self) -> Event {
        let mut event = self.valued();
        if let (Event::Valued { result, .. }, RoundNumber(1)) =
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
        for (past, round) in state.whole.values().zip(1..) {
            let report = &past.report;
            let ended = state.past[round as usize - 1];
            let settled = report.outcome == RoundOutcome::Settled;
            assert_eq!((ended.report, ended.settled), (report.digest(), settled));
            assert_eq!(ended.model, report.model);
            assert_eq!(
                (report.scope.round, report.previous_report),
                (RoundNumber(round), previous)
            );
            assert!(report.data_total >= paid && report.data_total <= self.spec.budget.data);
            let debits = report.lines.iter().map(|line| line.debit);
            assert!(debits.into_iter().all(|debit| debit <= self.spec.budget.debit_max));
            assert!(!settled || report.entries.len() >= 2);
            assert!(settled || report.data_total == paid);
            let asked = report.entries.len() + report.missing.len();
            assert_eq!(asked, past.offer.cohort.len());
            let judged = report.entries.len() >= 2;
            assert_eq!(report.holdout.rows.len(), if judged { 10 } else { 0 });
            assert!(report.holdout.rows.iter().all(|row| !exposed.contains(row)), "{exposed:?}");
            exposed.extend(&report.holdout.rows);
            (paid, previous) = (report.data_total, past.digest);
        }
        assert!(state.past.len() <= 3);
        assert_eq!(state.past.len(), state.whole.len(), "no round is archived");
        // A task is closed only when every debit is taken.
        assert!(state.unproven.is_subset(&state.finalised));
        let wanted = self.engine.outstanding();
        let closes = wanted.iter().any(|effect| matches!(effect, Effect::Close { .. }));
        assert!(!closes || state.unproven.is_empty());
        if let Some(running) = state.running() {
            let open = matches!(state.phase(), TaskPhase::Committing | TaskPhase::Revealing);
            assert_eq!(running.drawn.len(), if open { 0 } else { 10 });
            assert!(running.drawn.iter().all(|row| !exposed.contains(row)), "{exposed:?}");
            assert!(!open || running.order.is_none());
        }
        let early = state.running().is_some_and(|r| r.updates.len() > r.commits.len());
        assert!(!early);
    }
}

pub(crate) fn replay(journal: &[(Timestamp, Event)]) -> Engine {
    let mut engine = Engine::new(market(), address(COORDINATOR));
    for (now, event) in journal {
        let applied = engine.apply(event, *now).unwrap();
        assert_eq!(applied.verdict, Verdict::New);
    }
    engine
}

fn digest(state: &State) -> Digest {
    state.digest()
}

/// The effects without those that archive rounds.
pub(crate) fn besides(effects: Vec<Effect>) -> Vec<Effect> {
    effects.into_iter().filter(|effect| !matches!(effect, Effect::Keep { .. })).collect()
}

/// Compares a market that archives rounds with one that does not: apart from the archived rounds,
/// their states and effects are equal.
fn check_kept(world: &World, twin: &World) {
    let (mut state, whole) = (world.engine.state().clone(), twin.engine.state());
    let task = state.tasks.get_mut(&world.id).unwrap();
    let all = &whole.tasks[&world.id];
    for (round, past) in &task.whole {
        assert_eq!(all.whole.get(round), Some(past));
    }
    for (ended, round) in task.past.iter_mut().zip(1..) {
        let here = task.whole.contains_key(&RoundNumber(round));
        assert_eq!(ended.kept.take().is_none(), here, "round {round} is in one place");
        // A round that is not final may still need to be posted or proven.
        let settles = ended.settled && !task.finalised.contains(&RoundNumber(round));
        assert!(here || !settles && !task.unproven.contains(&RoundNumber(round)), "{round}");
    }
    task.whole.clone_from(&all.whole);
    state.now = whole.now;
    assert_eq!(&state, whole);
    assert_eq!(besides(world.engine.outstanding()), besides(twin.engine.outstanding()));
    assert_eq!(world.engine.next_deadline(), twin.engine.next_deadline());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn replaying_the_journal_gives_the_live_state(
        steps in prop::collection::vec(step(), 1..160),
    ) {
        let mut world = World::published(5);
        let mut twin = world.clone();
        for step in steps {
            if let Step::Wait(ms) = step {
                world.now = world.now.saturating_add_ms(ms);
                twin.now = world.now;
            }
            let Some(event) = world.event(step) else { continue };
            let before = digest(world.engine.state());
            let other = (!matches!(event, Event::Kept { .. })).then(|| twin.tell(event.clone()));
            let told = world.tell(event);
            if let Some(other) = other {
                let said = |told: &Result<Applied, Rejection>| {
                    told.clone().map(|told| (told.verdict, besides(told.effects), told.changed))
                };
                prop_assert_eq!(said(&told), said(&other));
            }
            match told {
                Ok(applied) if applied.verdict == Verdict::New => {
                    prop_assert_ne!(digest(world.engine.state()), before);
                }
                Ok(_) | Err(_) => prop_assert_eq!(digest(world.engine.state()), before),
            }
            twin.check_rules();
            check_kept(&world, &twin);
        }
        let again = replay(&world.journal);
        prop_assert_eq!(digest(again.state()), digest(world.engine.state()));
        prop_assert_eq!(again.outstanding(), world.engine.outstanding());
        prop_assert_eq!(again.next_deadline(), world.engine.next_deadline());
    }
}

#[test]
fn time_never_runs_backwards() {
    let mut world = World::opened(4);
    world.now = Timestamp(5_000);
    world.tell(world.committed(1)).unwrap();
    world.now = Timestamp(4_000);
    world.tell(world.committed(2)).unwrap();
    assert_eq!(world.engine.state().now, Timestamp(5_000));
}
