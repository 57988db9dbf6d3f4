//! Golden vectors of whole leases: the default of each phase, and the ends of disputes.

use florin_compute::{DataClass, LeaseOutcome, Party, Phase};
use serde_json::{Value, json};

use super::lease_example::lease_json;
use super::lease_recorder::{LeaseRecorder, SECOND, SEGMENTS, STEPS, Silence, WINNER, bid};
use super::leases::LeaseVector;

fn lease_vector(name: &str, recorder: &LeaseRecorder, outcome: LeaseOutcome) -> Value {
    let (lease, opening) = (recorder.lease(), recorder.opening());
    assert_eq!(lease.outcome(), Some(outcome), "{name}");
    let fields = json!({
        "order": opening.order,
        "opened": opening.opened,
        "beacon": opening.beacon,
        "records": recorder.records,
    });
    let expected = lease_json(lease, &recorder.states);
    LeaseVector { name, kind: "lease", fields, expected }.json()
}

fn funded() -> LeaseRecorder {
    LeaseRecorder::funded(DataClass::Public)
}

/// A lease on public rows whose starts are served, all of them right.
fn served() -> LeaseRecorder {
    LeaseRecorder::served(DataClass::Public, u32::MAX)
}

/// One bidder is silent, one asks for too much, and two do not fund the lease.
fn vain_bids() -> LeaseRecorder {
    let bids = [(WINNER, bid(100)), (SECOND, bid(200)), (5, bid(477)), (6, bid(1))];
    let mut recorder = LeaseRecorder::with_bids(DataClass::Public, &bids);
    bids[..3].iter().for_each(|(bidder, bid)| recorder.open_bid(*bidder, bid));
    (0..3).for_each(|_| recorder.expire());
    recorder
}

fn without_an_award() -> Vec<Value> {
    let none = LeaseRecorder::with_bids(DataClass::Public, &[]);
    let few = LeaseRecorder::with_auditors(DataClass::Public, &[11], &[(WINNER, bid(100))]);
    vec![
        lease_vector("a lease without a bid", &none, LeaseOutcome::Unawarded),
        lease_vector("a lease with too few auditors", &few, LeaseOutcome::Unawarded),
        lease_vector("a lease whose bidders are silent", &vain_bids(), LeaseOutcome::Unawarded),
    ]
}

fn without_a_segment() -> LeaseRecorder {
    let mut recorder = funded();
    recorder.expire();
    recorder
}

/// Three of six segments, with an outage before the third one and one after the draw.
fn three_segments() -> LeaseRecorder {
    let mut recorder = funded();
    recorder.deliver(2);
    recorder.resume(250);
    recorder.deliver(1);
    recorder.expire();
    recorder.draw();
    recorder.resume(1_700);
    recorder.serve(usize::MAX);
    recorder.seal(None);
    recorder.open_leaves();
    recorder.open_ends(None);
    recorder
}

fn unserved() -> LeaseRecorder {
    let mut recorder = funded();
    recorder.deliver(SEGMENTS);
    recorder.draw();
    recorder.serve(1);
    recorder.expire();
    recorder
}

fn closed_leaves() -> LeaseRecorder {
    let mut recorder = served();
    recorder.seal(None);
    recorder.open_ends(None);
    recorder.expire();
    recorder
}

fn no_result() -> LeaseRecorder {
    let mut recorder = funded();
    recorder.deliver(SEGMENTS);
    (0..2).for_each(|_| recorder.expire());
    recorder
}

/// A provider that serves one start and opens one leaf, and one that does nothing after its delivery.
fn gone(segments: u32, served: usize, opened: usize) -> LeaseRecorder {
    let mut recorder = funded();
    recorder.deliver(segments);
    if segments < SEGMENTS {
        recorder.expire();
    }
    recorder.draw();
    recorder.serve(served);
    recorder.use_checkpoints();
    recorder.seal(None);
    recorder.open_ends(None);
    recorder.drawn().iter().take(opened).for_each(|segment| recorder.open_leaf(*segment));
    recorder.use_checkpoints();
    recorder
}

/// A fake segment whose provider is gone.
fn gone_with_a_fake() -> LeaseRecorder {
    let wrong = |segment: &u32| LeaseRecorder::served(DataClass::Public, segment * STEPS + 3);
    let is_drawn = |segment: &u32| wrong(segment).drawn().contains(segment);
    let mut recorder = wrong(&(0..SEGMENTS).find(is_drawn).unwrap());
    recorder.seal(None);
    recorder.open_ends(None);
    recorder.use_checkpoints();
    assert_eq!(recorder.phase(), Phase::Disputing);
    recorder
}

/// An auditor that seals a wrong end because the provider is gone.
fn gone_beside_a_liar() -> LeaseRecorder {
    let mut recorder = served();
    recorder.liar = Some(recorder.first_asked());
    recorder.seal(None);
    recorder.open_ends(None);
    recorder.use_checkpoints();
    while recorder.phase() == Phase::Disputing {
        recorder.use_checkpoints();
        recorder.rule(0);
    }
    recorder
}

/// The dispute of a fake segment whose provider is gone ends with a ruling, or with its silence.
fn gone_in_a_dispute(is_ruled: bool) -> LeaseRecorder {
    let mut recorder = gone_with_a_fake();
    if is_ruled {
        recorder.use_checkpoints();
        recorder.rule(0);
    } else {
        recorder.expire();
    }
    recorder
}

/// No beacon: the checkpoint of the result is opened alone.
fn gone_without_a_beacon() -> LeaseRecorder {
    let mut recorder = funded();
    recorder.deliver(SEGMENTS);
    recorder.expire();
    recorder.use_checkpoints();
    recorder
}

fn checkpoints() -> Vec<Value> {
    let of = |name, recorder: LeaseRecorder| {
        let outcome = recorder.lease().outcome().unwrap();
        lease_vector(name, &recorder, outcome)
    };
    let all = vec![
        of("a provider that is gone after its delivery", gone(SEGMENTS, 0, 0)),
        of("a provider that is gone after three segments", gone(3, 0, 0)),
        of("a provider that serves one start and opens one leaf", gone(SEGMENTS, 1, 1)),
        of("a gone provider without a beacon", gone_without_a_beacon()),
        of("a gone provider with a fake segment, and a ruling", gone_in_a_dispute(true)),
        of("a gone provider with a fake segment, and no ruling", gone_in_a_dispute(false)),
        of("a wrong auditor of a gone provider", gone_beside_a_liar()),
    ];
    assert_eq!(gone(3, 0, 0).lease().outcome(), Some(LeaseOutcome::Defaulted { delivered: 3 }));
    for is_ruled in [true, false] {
        let outcome = gone_in_a_dispute(is_ruled).lease().outcome();
        assert!(matches!(outcome, Some(LeaseOutcome::Slashed { .. })));
    }
    assert_eq!(gone_beside_a_liar().lease().outcome(), Some(LeaseOutcome::Settled));
    all
}

fn defaults_of_the_provider() -> Vec<Value> {
    let slashed = |name, recorder: LeaseRecorder, segment| {
        lease_vector(name, &recorder, LeaseOutcome::Slashed { segment })
    };
    let defaulted = |name, recorder: LeaseRecorder, delivered| {
        lease_vector(name, &recorder, LeaseOutcome::Defaulted { delivered })
    };
    let drawn = served().drawn();
    vec![
        defaulted("a lease without a segment", without_a_segment(), 0),
        defaulted("a lease of three segments and two outages", three_segments(), 3),
        slashed("a start that is not served", unserved(), drawn[1]),
        slashed("a leaf that is not opened", closed_leaves(), drawn[0]),
        slashed("a result that is not opened", no_result(), SEGMENTS - 1),
    ]
}

fn without_a_beacon() -> LeaseRecorder {
    let mut recorder = funded();
    recorder.deliver(SEGMENTS);
    recorder.expire();
    recorder.open_leaves();
    recorder
}

/// A silent auditor is replaced.
fn replaced(silence: fn(&LeaseRecorder) -> Silence) -> LeaseRecorder {
    let mut recorder = served();
    recorder.seal(Some(silence(&recorder)));
    recorder.expire();
    assert_eq!(recorder.phase(), Phase::Auditing);
    recorder.seal(None);
    recorder.open_leaves();
    recorder.open_ends(None);
    recorder
}

/// An auditor and its three replacements are silent; further ones are in reserve.
fn replaced_three_times() -> LeaseRecorder {
    let mut recorder = served();
    recorder.seal(Some(Silence::Everywhere(recorder.first_asked())));
    (0..4).for_each(|_| recorder.expire());
    assert_eq!(recorder.phase(), Phase::Opening);
    assert!(recorder.lease().audits()[0].reserve.len() > 1);
    recorder.open_leaves();
    recorder.open_ends(None);
    recorder
}

fn without_ends() -> LeaseRecorder {
    let mut recorder = served();
    while recorder.phase() == Phase::Auditing {
        recorder.expire();
    }
    recorder.open_leaves();
    recorder
}

fn closed_end() -> LeaseRecorder {
    let mut recorder = served();
    recorder.seal(None);
    recorder.open_leaves();
    recorder.open_ends(Some(recorder.first_asked()));
    recorder.expire();
    recorder
}

fn audits() -> Vec<Value> {
    let everywhere = replaced(|recorder| Silence::Everywhere(recorder.first_asked()));
    let once = replaced(|recorder| Silence::FirstSegment(recorder.asked_twice()));
    let of = |name, recorder: LeaseRecorder| lease_vector(name, &recorder, LeaseOutcome::Settled);
    vec![
        of("a lease without a beacon", without_a_beacon()),
        of("an auditor that is replaced", everywhere),
        of("an auditor that is silent in one of two segments", once),
        of("a fourth silent auditor, which is not replaced", replaced_three_times()),
        of("a lease whose auditors are all silent", without_ends()),
        of("an end that is not opened", closed_end()),
    ]
}

/// A dispute: the provider is wrong from the third step of a drawn segment on, or an auditor lies.
fn dispute(class: DataClass, wrong_side: Party) -> LeaseRecorder {
    let wrong = |segment: &u32| LeaseRecorder::served(class, segment * STEPS + 3);
    let is_drawn = |segment: &u32| wrong(segment).drawn().contains(segment);
    let mut recorder = match wrong_side {
        Party::Provider => wrong(&(0..SEGMENTS).find(is_drawn).unwrap()),
        Party::Auditor => LeaseRecorder::served(class, u32::MAX),
    };
    recorder.liar = (wrong_side == Party::Auditor).then(|| recorder.first_asked());
    recorder.seal(None);
    recorder.open_leaves();
    recorder.open_ends(None);
    assert_eq!(recorder.phase(), Phase::Disputing);
    recorder
}

/// Resolves disputes until there is none.
fn resolved(mut recorder: LeaseRecorder, resolve: fn(&mut LeaseRecorder)) -> LeaseRecorder {
    while matches!(recorder.phase(), Phase::Disputing | Phase::Refereeing) {
        resolve(&mut recorder);
    }
    recorder
}

fn referee_rules(recorder: &mut LeaseRecorder, version: u8) {
    recorder.answer(None);
    recorder.rule(version);
}

fn side_is_silent(recorder: &mut LeaseRecorder, side: Party) {
    recorder.answer(Some(side));
    recorder.expire();
}

fn referee_is_silent(recorder: &mut LeaseRecorder) {
    recorder.answer(None);
    recorder.expire();
}

fn disputes_of_wrong_providers() -> Vec<Value> {
    let of = |name, resolve| {
        let recorder = dispute(DataClass::Public, Party::Provider);
        let segment = recorder.lease().dispute().unwrap().segment;
        let recorder = resolved(recorder, resolve);
        lease_vector(name, &recorder, LeaseOutcome::Slashed { segment })
    };
    vec![
        of("a ruling for the auditor", |recorder| referee_rules(recorder, 0)),
        of("a ruling for neither side", |recorder| referee_rules(recorder, 2)),
        of("a provider that does not answer", |recorder| side_is_silent(recorder, Party::Provider)),
    ]
}

fn disputes_of_wrong_auditors() -> Vec<Value> {
    let of = |name, class, resolve| {
        let recorder = resolved(dispute(class, Party::Auditor), resolve);
        lease_vector(name, &recorder, LeaseOutcome::Settled)
    };
    let (public, private) = (DataClass::Public, DataClass::Private);
    let rule: fn(&mut LeaseRecorder) = |recorder| referee_rules(recorder, 0);
    vec![
        of("a ruling for the provider", public, rule),
        of("an auditor that does not answer", public, |recorder| {
            side_is_silent(recorder, Party::Auditor);
        }),
        of("a referee that does not rule", public, referee_is_silent),
        of("a ruling on private rows", private, rule),
        of("a referee that does not rule on private rows", private, referee_is_silent),
    ]
}

pub(crate) fn whole_leases() -> Vec<Value> {
    let disputes = [disputes_of_wrong_providers(), disputes_of_wrong_auditors()].concat();
    [without_an_award(), defaults_of_the_provider(), checkpoints(), audits(), disputes].concat()
}
