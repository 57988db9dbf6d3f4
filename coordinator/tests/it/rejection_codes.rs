//! The rules of a round as tables: each invalid event with its rejection code.

use florin_engine::state::TaskStage;
use florin_engine::{Effect, Event, EventStatus, ProofTree, Visibility};
use florin_protocol::*;

use crate::support::*;

fn other_market() -> MarketId {
    MarketId { chain: ChainId(1), ..market() }
}

type Mutation<T> = fn(&mut T);

#[test]
fn an_invalid_commit_is_rejected_with_its_code() {
    let table: &[(&str, ErrorCode, Mutation<Commit>)] = &[
        ("another chain", ErrorCode::WrongMarket, |c| c.scope.market = other_market()),
        ("another task", ErrorCode::UnknownTask, |c| c.scope.task = TaskId([7; 32])),
        ("the next round", ErrorCode::WrongRound, |c| c.scope.round = RoundNumber(2)),
        ("round 0", ErrorCode::WrongRound, |c| c.scope.round = RoundNumber(0)),
        ("a stranger", ErrorCode::NotRegistered, |c| c.sender = address(99)),
        ("another offer", ErrorCode::WrongRound, |c| c.offer = Digest([3; 32])),
    ];
    for (name, code, change) in table {
        let mut world = EngineFixture::with_open_round(4);
        let mut commit = world.commit(1);
        change(&mut commit);
        let event = Event::Committed { commit: node(1).sign(commit), bond: fln("5") };
        assert_eq!(world.rejection_code(event), *code, "{name}");
    }
}

#[test]
fn an_invalid_update_is_rejected_with_its_code() {
    let table: &[(&str, ErrorCode, Mutation<UpdateHeader>)] = &[
        ("another chain", ErrorCode::WrongMarket, |h| h.scope.market = other_market()),
        ("another task", ErrorCode::UnknownTask, |h| h.scope.task = TaskId([7; 32])),
        ("the next round", ErrorCode::WrongRound, |h| h.scope.round = RoundNumber(2)),
        ("a stranger", ErrorCode::NotRegistered, |h| h.sender = address(99)),
        ("another offer", ErrorCode::WrongRound, |h| h.offer = Digest([3; 32])),
        ("another base model", ErrorCode::WrongBaseModel, |h| h.base_model = Digest([3; 32])),
        ("no rows", ErrorCode::InvalidRowCount, |h| h.rows = 0),
        ("10^12 rows", ErrorCode::InvalidRowCount, |h| h.rows = 1_000_000_000_000),
        ("expired", ErrorCode::DeadlinePassed, |h| h.expires = Timestamp(1)),
        ("too long", ErrorCode::TooLarge, |h| h.bytes += 1),
        ("too short", ErrorCode::Truncated, |h| h.bytes -= 1),
        ("another update", ErrorCode::CommitMismatch, |h| h.update = Digest([3; 32])),
        ("another salt", ErrorCode::CommitMismatch, |h| h.salt = Digest([3; 32])),
    ];
    for (name, code, change) in table {
        let mut world = EngineFixture::in_revealing(4);
        let mut header = world.header(1);
        change(&mut header);
        assert_eq!(world.rejection_code(Event::Revealed(node(1).sign(header))), *code, "{name}");
    }
}

#[test]
fn a_copied_commitment_cannot_be_revealed_by_the_copier() {
    let mut world = EngineFixture::with_open_round(4);
    let mut copy = world.commit(2);
    copy.commitment = world.commit(1).commitment;
    world.apply(Event::Committed { commit: node(2).sign(copy), bond: fln("5") }).unwrap();
    for i in [1, 3, 4] {
        world.apply(world.commit_event(i)).unwrap();
    }
    let mut header = world.header(1);
    header.sender = address(2);
    assert_eq!(
        world.rejection_code(Event::Revealed(node(2).sign(header))),
        ErrorCode::CommitMismatch
    );
}

#[test]
fn a_message_exactly_at_its_deadline_is_accepted() {
    for (late, verdict) in [(-1, None), (0, None), (1, Some(ErrorCode::DeadlinePassed))] {
        let mut world = EngineFixture::with_open_round(4);
        let commit = world.commit_event(1);
        world.now = Timestamp(world.offer().commit_by.0.checked_add_signed(late).unwrap());
        assert_eq!(world.apply(commit).err().map(|r| r.code), verdict, "commit {late}");
        let mut world = EngineFixture::in_revealing(4);
        let reveal = world.reveal_event(1);
        world.now = Timestamp(world.offer().reveal_by.0.checked_add_signed(late).unwrap());
        assert_eq!(world.apply(reveal).err().map(|r| r.code), verdict, "reveal {late}");
        let mut world = EngineFixture::with_published_task(4);
        let expires = world.now.saturating_add_ms(50);
        let enrol = EnrolRequest::without_invitation(market(), world.id, address(1), expires);
        world.now = Timestamp(expires.0.checked_add_signed(late).unwrap());
        let event = Event::Enrolled { enrol: node(1).sign(enrol), bond: fln("5") };
        assert_eq!(world.apply(event).err().map(|r| r.code), verdict, "enrol {late}");
    }
}

#[test]
fn a_tick_closes_commits_one_millisecond_after_their_deadline() {
    let mut world = EngineFixture::with_open_round(4);
    for i in 1..=3 {
        world.apply(world.commit_event(i)).unwrap();
    }
    let late = world.commit_event(4);
    world.now = world.offer().commit_by;
    assert_eq!(world.engine.next_deadline(), Some(world.now.saturating_add_ms(1)));
    assert_eq!(world.apply(Event::Tick).unwrap().status, EventStatus::Duplicate);
    world.now = world.now.saturating_add_ms(1);
    assert_eq!(world.apply(Event::Tick).unwrap().status, EventStatus::New);
    assert_eq!(world.rejection_code(late), ErrorCode::DeadlinePassed);
    assert!(matches!(world.engine.state().tasks[&world.id].stage, TaskStage::Revealing(_)));
}

#[test]
fn uploads_while_commits_are_open_are_too_early() {
    let mut world = EngineFixture::with_open_round(4);
    world.apply(world.commit_event(1)).unwrap();
    assert_eq!(world.rejection_code(world.reveal_event(1)), ErrorCode::TooEarly);
}

#[test]
fn an_update_without_a_commit_is_rejected() {
    let mut world = EngineFixture::with_open_round(4);
    for i in 1..=3 {
        world.apply(world.commit_event(i)).unwrap();
    }
    world.now = world.offer().commit_by.saturating_add_ms(1);
    world.apply(Event::Tick).unwrap();
    assert_eq!(world.rejection_code(world.reveal_event(4)), ErrorCode::NotCommitted);
}

#[test]
fn an_identical_repeat_is_idempotent_and_a_different_message_conflicts() {
    let mut world = EngineFixture::with_open_round(4);
    let commit = world.commit_event(1);
    world.apply(commit.clone()).unwrap();
    let state = world.engine.state().clone();
    assert_eq!(world.apply(commit).unwrap().status, EventStatus::Duplicate);
    assert_eq!(*world.engine.state(), state);
    let other = Commit { commitment: Digest([8; 32]), ..world.commit(1) };
    let event = Event::Committed { commit: node(1).sign(other), bond: fln("5") };
    assert_eq!(world.rejection_code(event), ErrorCode::ConflictingMessage);

    let mut world = EngineFixture::in_revealing(4);
    let header = world.header(1);
    world.apply(Event::Revealed(node(1).sign(header.clone()))).unwrap();
    let scope = header.scope;
    let receipt = world.engine.receipt(scope, address(1), header.digest()).unwrap();
    // Commitments cover update, salt and sender; a header with other rows still matches.
    let more = UpdateHeader { rows: 999, ..world.header(1) };
    assert_eq!(
        world.rejection_code(Event::Revealed(node(1).sign(more))),
        ErrorCode::ConflictingMessage
    );
    for i in 2..=4 {
        world.apply(world.reveal_event(i)).unwrap();
    }
    world.disclose();
    world.apply(world.valued_event()).unwrap();
    world.now = Timestamp(500_000);
    let again = Event::Revealed(node(1).sign(header.clone()));
    assert_eq!(world.apply(again).unwrap().status, EventStatus::Duplicate);
    assert_eq!(world.engine.receipt(scope, address(1), header.digest()), Some(receipt));
}

#[test]
fn a_message_of_one_round_has_no_effect_in_the_next() {
    let mut world = EngineFixture::in_revealing(4);
    let (commit, reveal) = (world.commit_event(1), world.reveal_event(1));
    for i in 1..=4 {
        world.apply(world.reveal_event(i)).unwrap();
    }
    world.disclose();
    world.apply(world.valued_event()).unwrap();
    world.apply(Event::SettlementPosted { task: world.id, round: RoundNumber(1) }).unwrap();
    assert_eq!(world.offer().scope.round, RoundNumber(2));
    assert_eq!(world.rejection_code(commit), ErrorCode::WrongRound);
    // The update was accepted: it gets the same receipt, without any other effect.
    assert_eq!(world.apply(reveal).unwrap().status, EventStatus::Duplicate);
}

#[test]
fn too_small_a_bond_is_rejected_at_enrolment_and_at_commit() {
    let mut world = EngineFixture::with_published_task(4);
    let Event::Enrolled { enrol, .. } = world.enrol_event(1) else { unreachable!() };
    let bond = fln("4.999999999999999999");
    assert_eq!(world.rejection_code(Event::Enrolled { enrol, bond }), ErrorCode::BondTooSmall);
    let mut world = EngineFixture::with_open_round(4);
    let commit = node(1).sign(world.commit(1));
    assert_eq!(world.rejection_code(Event::Committed { commit, bond }), ErrorCode::BondTooSmall);
}

#[test]
fn only_selected_participants_may_commit() {
    let mut spec = spec();
    spec.rounds.cohort_target = 2;
    let mut world = EngineFixture::with_published_spec(spec, 4);
    for i in 1..=2 {
        world.apply(world.enrol_event(i)).unwrap();
    }
    assert_eq!(world.rejection_code(world.commit_event(3)), ErrorCode::NotEnrolled);
    world.apply(world.enrol_event(3)).unwrap();
    assert_eq!(world.rejection_code(world.commit_event(3)), ErrorCode::NotSelected);
}

#[test]
fn an_invalid_task_is_rejected_with_its_code() {
    let table: &[(&str, ErrorCode, Mutation<TaskSpec>)] = &[
        ("another chain", ErrorCode::WrongMarket, |s| s.market = other_market()),
        ("no rounds", ErrorCode::InvalidTask, |s| s.rounds.count = 0),
        ("another coordinator", ErrorCode::InvalidTask, |s| s.coordinator = address(99)),
        ("an expiry that is too soon", ErrorCode::InvalidTask, |s| s.expires = Timestamp(2_000)),
    ];
    for (name, code, change) in table {
        let mut world = EngineFixture::with_published_task(0);
        let mut spec = TaskSpec { salt: 1, ..spec() };
        change(&mut spec);
        let event = Event::TaskPublished {
            spec: spec.into(),
            model_bytes: MODEL_BYTES,
            update_bytes: MODEL_BYTES,
        };
        assert_eq!(world.rejection_code(event), *code, "{name}");
    }
    let mut world = EngineFixture::with_published_task(0);
    let event = Event::TaskPublished {
        spec: spec().into(),
        model_bytes: MODEL_BYTES,
        update_bytes: MODEL_BYTES,
    };
    assert_eq!(world.apply(event).unwrap().status, EventStatus::Duplicate);
}

#[test]
fn the_first_round_waits_for_its_target_and_then_starts_with_the_minimum() {
    let mut world = EngineFixture::with_published_task(4);
    for i in 1..=3 {
        world.apply(world.enrol_event(i)).unwrap();
    }
    let phase = |world: &EngineFixture| world.engine.state().tasks[&world.id].phase();
    assert_eq!(phase(&world), TaskPhase::Enrolling);
    world.now = Timestamp(1_000 + 2_999);
    assert_eq!(world.apply(Event::Tick).unwrap().status, EventStatus::Duplicate);
    world.now = Timestamp(1_000 + 3_000);
    world.apply(Event::Tick).unwrap();
    assert_eq!((phase(&world), world.offer().cohort.len()), (TaskPhase::Committing, 3));
    let mut eager = EngineFixture::with_open_round(4);
    assert_eq!(phase(&eager), TaskPhase::Committing);
    assert_eq!(eager.now, Timestamp(1_000));
    assert_eq!(eager.apply(Event::Tick).unwrap().status, EventStatus::Duplicate);
}

#[test]
fn a_task_without_participants_ends_when_no_round_fits_before_its_expiry() {
    let mut world = EngineFixture::with_published_task(1);
    world.apply(world.enrol_event(1)).unwrap();
    world.now = world.engine.next_deadline().unwrap();
    assert_eq!(world.now, Timestamp(900_000 - 82_001 + 1));
    let applied = world.apply(Event::Tick).unwrap();
    assert_eq!(applied.effects, [Effect::CloseTask { task: world.id }]);
    assert_eq!(world.rejection_code(world.enrol_event(1)), ErrorCode::TaskClosed);
}

#[test]
fn too_few_commits_abandon_the_round_without_a_debit() {
    let mut world = EngineFixture::with_open_round(4);
    world.apply(world.commit_event(1)).unwrap();
    let pool = world.offer().pool;
    world.now = world.offer().commit_by.saturating_add_ms(1);
    world.apply(Event::Tick).unwrap();
    let report = world.engine.report(world.id, RoundNumber(1)).unwrap().clone();
    let needed = AbandonReason::TooFewUpdates { got: 0, needed: 2 };
    assert_eq!(report.outcome, RoundOutcome::Abandoned(needed));
    assert!(report.lines.is_empty() && report.data_total.is_zero());
    assert_eq!(report.missing.len(), 4);
    let missing = report.missing.iter().find(|(who, _)| *who == address(1)).unwrap();
    assert_eq!(missing.1, MissingReason::NoReveal);
    for i in 2..=3 {
        world.apply(world.enrol_event(i)).unwrap();
    }
    // The pool rolls over, the model stays, and no transaction is sent to the ledger.
    assert!(world.engine.pending_effects().is_empty());
    assert_eq!(world.offer().scope.round, RoundNumber(2));
    assert_eq!(world.offer().pool, fln("45"));
    assert_eq!(pool, fln("30"));
    assert_eq!(world.offer().base_model, world.spec.base_model);
    assert_eq!(world.offer().previous_report, report.digest());
}

#[test]
fn a_participant_without_an_upload_is_reported_with_the_reason_and_the_round_continues() {
    let mut world = EngineFixture::in_revealing(4);
    for i in 1..=2 {
        world.apply(world.reveal_event(i)).unwrap();
    }
    let refused = |code| Event::UploadRejected {
        task: spec().id(),
        round: RoundNumber(1),
        sender: address(3),
        code,
    };
    world.apply(refused(ErrorCode::Truncated)).unwrap();
    world.apply(refused(ErrorCode::UpdateNotFinite)).unwrap();
    let stranger = Event::UploadRejected {
        task: world.id,
        round: RoundNumber(1),
        sender: address(9),
        code: ErrorCode::TooLarge,
    };
    assert_eq!(world.apply(stranger).unwrap().status, EventStatus::Duplicate);
    for _ in 0..6 {
        world.apply(refused(ErrorCode::TooLarge)).unwrap();
    }
    assert_eq!(world.apply(refused(ErrorCode::Truncated)).unwrap().status, EventStatus::Duplicate);
    world.now = world.offer().reveal_by.saturating_add_ms(1);
    let applied = world.apply(Event::Tick).unwrap();
    assert_eq!(applied.effects, [Effect::DiscloseRows { task: world.id, round: RoundNumber(1) }]);
    assert_eq!(world.disclose(), [Effect::ValueRound { task: world.id, round: RoundNumber(1) }]);
    world.apply(world.valued_event()).unwrap();
    let report = world.engine.report(world.id, RoundNumber(1)).unwrap();
    let missing: std::collections::BTreeMap<_, _> = report.missing.iter().copied().collect();
    assert_eq!(missing[&address(3)], MissingReason::Rejected(ErrorCode::TooLarge));
    assert_eq!(missing[&address(4)], MissingReason::NoReveal);
    assert_eq!(report.entries.len(), 2);
}

#[test]
fn rows_count_only_as_far_as_the_bond_covers_them() {
    let mut world = EngineFixture::in_revealing(4);
    for i in 1..=4 {
        let mut header = world.header(i);
        header.rows = if i == 1 { 1_000_000 } else { 100 };
        world.apply(Event::Revealed(node(i).sign(header))).unwrap();
    }
    world.disclose();
    let entry = world.order().entries.iter().find(|e| e.sender == address(1)).unwrap().clone();
    assert_eq!((entry.rows_declared, entry.rows_counted), (1_000_000, 500));
}

#[test]
fn a_providers_record_is_awaited_verified_and_paid_once() {
    let mut world = EngineFixture::in_revealing(4);
    world.apply(Event::ProviderReady { task: world.id, provider: address(PROVIDER) }).unwrap();
    let mut effects = Vec::new();
    for i in 1..=4 {
        effects = world.apply(world.reveal_event(i)).unwrap().effects;
    }
    assert_eq!(effects, [Effect::DiscloseRows { task: world.id, round: RoundNumber(1) }]);
    effects = world.disclose();
    assert!(effects.is_empty(), "the provider's time is not over: {effects:?}");
    let order = world.order().digest();
    let open = |world: &EngineFixture| {
        world.engine.open_order(world.id, address(PROVIDER), world.now).is_some()
    };
    assert!(open(&world));
    let record = world.record();
    let event = Event::WorkRecordReceived { record: record.clone(), agrees: None };
    let applied = world.apply(event.clone()).unwrap();
    assert_eq!(applied.effects, [Effect::ValueRound { task: world.id, round: RoundNumber(1) }]);
    assert!(!open(&world));
    let digest = record.body.digest();
    assert_eq!(world.engine.record_outcome(order, digest), None);
    let Event::RoundValued { task, round, result, .. } = world.valued_event() else {
        unreachable!()
    };
    let paid = Some(digest);
    world
        .apply(Event::RoundValued { task, round, result, paid, wrong_records: Vec::new() })
        .unwrap();
    assert_eq!(world.engine.record_outcome(order, digest), Some(Ok(5)));
    assert_eq!(world.apply(event).unwrap().status, EventStatus::Duplicate);
    let report = world.engine.report(world.id, RoundNumber(1)).unwrap();
    assert_eq!(report.infrastructure.len(), 1);
    assert_eq!(report.infrastructure[0].amount, fln("0.5"));
    assert_eq!(report.infrastructure_total, fln("0.5"));
}

#[test]
fn a_wrong_record_is_not_paid_and_a_late_one_is_gone() {
    let mut world = EngineFixture::in_valuing(4);
    let order = world.order().digest();
    let mut record = world.record();
    record.body.result.valuation.total_nano += 1_000;
    let record = node(PROVIDER).sign(record.body);
    world.apply(Event::WorkRecordReceived { record: record.clone(), agrees: None }).unwrap();
    let honest = Event::WorkRecordReceived { record: world.record(), agrees: None };
    assert_eq!(world.rejection_code(honest.clone()), ErrorCode::ConflictingMessage);
    let digest = record.body.digest();
    let Event::RoundValued { task, round, result, .. } = world.valued_event() else {
        unreachable!()
    };
    world
        .apply(Event::RoundValued { task, round, result, paid: None, wrong_records: vec![digest] })
        .unwrap();
    let verdict = world.engine.record_outcome(order, digest).unwrap();
    assert_eq!(verdict.unwrap_err().code, ErrorCode::WorkResultMismatch);
    assert_eq!(world.rejection_code(honest), ErrorCode::WorkOrderClosed);
    assert!(world.engine.report(world.id, RoundNumber(1)).unwrap().infrastructure.is_empty());
}

#[test]
fn after_the_orders_deadline_the_coordinator_values_the_round_itself() {
    let mut world = EngineFixture::in_revealing(4);
    world.apply(Event::ProviderReady { task: world.id, provider: address(PROVIDER) }).unwrap();
    for i in 1..=4 {
        world.apply(world.reveal_event(i)).unwrap();
    }
    world.disclose();
    world.now = world.order().due;
    assert_eq!(world.apply(Event::Tick).unwrap().status, EventStatus::Duplicate);
    world.now = world.now.saturating_add_ms(1);
    let applied = world.apply(Event::Tick).unwrap();
    assert_eq!(applied.effects, [Effect::ValueRound { task: world.id, round: RoundNumber(1) }]);
}

#[test]
fn a_result_for_other_updates_is_rejected() {
    let mut world = EngineFixture::in_valuing(4);
    let Event::RoundValued { task, round, mut result, paid, wrong_records: wrong } =
        world.valued_event()
    else {
        unreachable!()
    };
    result.valuation.scores.swap(0, 1);
    let swapped = Event::RoundValued { task, round, result, paid, wrong_records: wrong };
    assert_eq!(world.rejection_code(swapped), ErrorCode::WorkResultMismatch);
    let Event::RoundValued { result, .. } = world.valued_event() else { unreachable!() };
    let elsewhere = Event::RoundValued {
        task,
        round: RoundNumber(2),
        result,
        paid: None,
        wrong_records: vec![],
    };
    assert_eq!(world.rejection_code(elsewhere), ErrorCode::WorkOrderClosed);
}

#[test]
fn a_failed_valuation_abandons_the_round_without_a_debit() {
    let mut world = EngineFixture::in_valuing(4);
    world.apply(Event::ValuationFailed { task: world.id, round: RoundNumber(1) }).unwrap();
    let report = world.engine.report(world.id, RoundNumber(1)).unwrap();
    assert_eq!(report.outcome, RoundOutcome::Abandoned(AbandonReason::ValuationFailed));
    assert_eq!(report.entries.len(), 4);
    world.apply(Event::SettlementPosted { task: world.id, round: RoundNumber(1) }).unwrap();
    assert_eq!(world.offer().scope.round, RoundNumber(2));
}

pub(crate) fn proof(world: &EngineFixture, i: u8) -> ClaimProof {
    ProofTree::from_final_totals(world.engine.final_totals(world.id).unwrap())
        .unwrap()
        .proof(address(i))
}

/// Plays a whole task and returns it at its end.
pub(crate) fn whole_task() -> EngineFixture {
    let mut world = EngineFixture::with_open_round(4);
    let task = world.id;
    for round in 1..=3 {
        (1..=4).for_each(|i| {
            world.apply(world.commit_event(i)).unwrap();
        });
        (1..=4).for_each(|i| {
            world.apply(world.reveal_event(i)).unwrap();
        });
        world.disclose();
        let applied = world.apply(world.valued_event()).unwrap();
        let round = RoundNumber(round);
        assert_eq!(applied.effects, [Effect::PostSettlement { task, round }]);
        let applied = world.apply(Event::SettlementPosted { task, round }).unwrap();
        assert_eq!(applied.effects, [Effect::FinalizeSettlement { task, round }]);
    }
    world
}

#[test]
fn a_task_ends_when_every_settlement_is_final() {
    let mut world = whole_task();
    let task = world.id;
    assert_eq!(world.engine.final_totals(task).unwrap_err().code, ErrorCode::NotYetPublic);
    world.apply(Event::SettlementFinal { task, round: RoundNumber(2) }).unwrap();
    let found = proof(&world, 1);
    assert_eq!(found.round, RoundNumber(2));
    let applied = world.apply(Event::SettlementFinal { task, round: RoundNumber(3) }).unwrap();
    assert_eq!(applied.effects, [Effect::CloseTask { task }]);
    world.apply(Event::TaskClosed { task, refund: fln("1") }).unwrap();
    for round in (1..=3).map(RoundNumber) {
        let bond = Effect::ReturnBond { task };
        assert_eq!(world.engine.pending_effects(), [Effect::ArchiveRound { task, round }, bond]);
        world.apply(Event::RoundArchived { task, round, digest: Digest([7; 32]) }).unwrap();
    }
    // The task's arbiter is another account, so that the coordinator may have a bond.
    let returned = world.apply(Event::BondReturned { task }).unwrap();
    assert_eq!((returned.status, returned.effects), (EventStatus::New, vec![]));
    let again = world.apply(Event::BondReturned { task }).unwrap();
    assert_eq!(again.status, EventStatus::Duplicate);
    assert!(world.engine.pending_effects().is_empty());
    assert_eq!(world.engine.state().tasks[&task].phase(), TaskPhase::Done);
    for i in 1..=4 {
        let found = proof(&world, i);
        assert!(merkle::verify(found.root, address(i), found.totals, &found.proof));
    }
    let unknown = proof(&world, 9);
    assert!(unknown.totals.is_zero() && unknown.proof.is_empty());
}

#[test]
fn reports_chain_from_the_task_to_the_last_round() {
    let mut world = whole_task();
    let reports: Vec<Report> =
        (1..=3).map(|r| world.engine.report(world.id, RoundNumber(r)).unwrap().clone()).collect();
    assert_eq!(reports[0].previous_report, Digest(world.id.0));
    assert_eq!(reports[1].previous_report, reports[0].digest());
    assert_eq!(reports[2].previous_report, reports[1].digest());
    assert!(reports[2].data_total <= world.spec.budget.data);
    assert_eq!(world.rejection_code(world.enrol_event(1)), ErrorCode::TaskClosed);
}

#[test]
fn a_close_request_ends_the_task_after_the_running_round() {
    let mut world = EngineFixture::in_revealing(4);
    let task = world.id;
    world.apply(Event::CloseRequested { task }).unwrap();
    assert_eq!(world.apply(Event::CloseRequested { task }).unwrap().status, EventStatus::Duplicate);
    for i in 1..=4 {
        world.apply(world.reveal_event(i)).unwrap();
    }
    world.disclose();
    world.apply(world.valued_event()).unwrap();
    world.apply(Event::SettlementPosted { task, round: RoundNumber(1) }).unwrap();
    // The last report pays what round 1 withheld.
    world.apply(Event::SettlementPosted { task, round: RoundNumber(2) }).unwrap();
    assert_eq!(world.engine.state().tasks[&task].phase(), TaskPhase::Closing);
    let mut idle = EngineFixture::with_published_task(1);
    let applied = idle.apply(Event::CloseRequested { task }).unwrap();
    assert_eq!(applied.effects, [Effect::CloseTask { task }]);
}

#[test]
fn a_debit_reduces_the_counted_bond_until_the_ledger_takes_it() {
    let mut world = EngineFixture::in_valuing(4);
    let task = world.id;
    let Event::RoundValued { round, mut result, .. } = world.valued_event() else { unreachable!() };
    let harmful = result.valuation.scores[0].account;
    result.valuation.scores[0].score_nano = -50_000_000;
    result.valuation.scores[0].excluded = true;
    world
        .apply(Event::RoundValued { task, round, result, paid: None, wrong_records: vec![] })
        .unwrap();
    let debit = world.engine.report(task, round).unwrap().line(harmful).unwrap().debit;
    assert!(!debit.is_zero());
    let state = &world.engine.state().tasks[&task];
    assert_eq!(state.pending_debits(harmful), debit);
    assert_eq!(state.enrolled[&harmful], fln("5").minus(debit).unwrap());
    world.apply(Event::SettlementPosted { task, round }).unwrap();
    // The bond is below the minimum now, so this participant is not selected; the others are.
    assert!(!world.offer().cohort.contains(&harmful));
    assert_eq!(world.offer().cohort.len(), 3);
    let who = (1..=4).find(|i| address(*i) == harmful).unwrap();
    let enrol = |world: &EngineFixture, bond| {
        let Event::Enrolled { enrol, .. } = world.enrol_event(who) else { unreachable!() };
        Event::Enrolled { enrol, bond }
    };
    // The ledger's bond still includes the pending debit.
    assert_eq!(world.rejection_code(enrol(&world, fln("5"))), ErrorCode::BondTooSmall);
    world.apply(enrol(&world, fln("7"))).unwrap();
    let left = world.engine.state().tasks[&task].enrolled[&harmful];
    assert_eq!(left, fln("7").minus(debit).unwrap());
    // A final settlement does not take the debit: it must be proven.
    let proven = Event::DebitsProven { task, round };
    assert_eq!(world.rejection_code(proven.clone()), ErrorCode::TooEarly);
    let applied = world.apply(Event::SettlementFinal { task, round }).unwrap();
    assert_eq!(applied.effects, [Effect::ProveDebits { task, round }]);
    assert_eq!(world.engine.state().tasks[&task].pending_debits(harmful), debit);
    assert_eq!(world.rejection_code(enrol(&world, fln("5"))), ErrorCode::BondTooSmall);
    world.apply(proven.clone()).unwrap();
    assert!(world.engine.state().tasks[&task].pending_debits(harmful).is_zero());
    assert_eq!(world.apply(proven).unwrap().status, EventStatus::Duplicate);
    world.apply(enrol(&world, fln("5"))).unwrap();
}

#[test]
fn updates_become_public_with_the_report_and_the_whole_holdout_never() {
    let mut world = EngineFixture::in_valuing(4);
    let see = |world: &EngineFixture, digest| world.engine.visibility(digest);
    let (update, whole) = (Digest([101; 32]), blob_digest(&all_rows().0));
    assert_eq!(see(&world, world.spec.base_model), Visibility::Public);
    assert_eq!(see(&world, update), Visibility::NotYetPublic);
    assert_eq!(see(&world, Digest([77; 32])), Visibility::Unknown);
    world.engine.check_order_names(world.id, update).unwrap();
    let other = world.engine.check_order_names(world.id, Digest([77; 32])).unwrap_err();
    assert_eq!(other.code, ErrorCode::NotYetPublic);
    world.apply(world.valued_event()).unwrap();
    assert_eq!(see(&world, update), Visibility::Public);
    assert_eq!(see(&world, Digest([51; 32])), Visibility::Public);
    for world in [world, whole_task()] {
        assert_eq!(see(&world, whole), Visibility::Unknown);
        assert!(world.engine.check_order_names(world.id, whole).is_err());
    }
}
