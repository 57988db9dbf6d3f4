//! Clip and noise: a trap that reads rows out of updates, the conditions of ε, and its count over
//! restarts.

use florin_learning::privacy::{ClipAndNoise, Delta, NOISE_MICRO_MAX, NOISE_MICRO_MIN, RowPrivacy};
use florin_protocol::{Micro, ModelArchitecture};

use florin_testkit::figures::{Bar, figure};

use super::*;
use crate::privacy::{Epsilon, PrivacyConfig, recorded_privacy};

const ONE: u64 = 1_000_000;
const DELTA: f64 = 1e-5;

fn noise(noise_micro: u64, epsilon_max: u64) -> Option<PrivacyConfig> {
    let wanted = ClipAndNoise { clip_micro: ONE, noise_micro };
    Some(PrivacyConfig {
        noise: RowPrivacy::try_from(wanted).unwrap(),
        delta: Delta::try_from(DELTA).unwrap(),
        epsilon_max: Epsilon::from(Micro(epsilon_max * ONE)),
    })
}

/// The largest ε that the events state, in millionths.
fn epsilon_micro(person: &TestParticipant) -> u64 {
    let spent = person.events.iter().filter_map(|event| match event {
        ParticipantEvent::PrivacySpent { spent } => Some(spent.epsilon.micro()),
        _ => None,
    });
    spent.max().unwrap_or_default()
}

/// A first layer that separates the rows of a batch: every unit measures the same brightness, each
/// against another threshold, so that two neighbours differ by the rows between their thresholds
/// (Fowl et al. 2022, "Robbing the Fed").
struct Trap {
    units: usize,
}

impl Trap {
    const INPUTS: usize = 4;
    /// Small, so that an update is not rounded against large parameters.
    const WEIGHT: f32 = 1e-3;
    /// Most of the brightness of the rows of [`rows`] lies in this range.
    const BRIGHTNESS: std::ops::Range<f32> = 1.2..4.8;

    fn start(&self) -> TestMarket {
        let (units, count) = (self.units as u32, self.units);
        let market = TestMarket::start_with(1, false, |spec| {
            spec.model = ModelArchitecture::Mlp { inputs: 4, hidden: vec![units], classes: 3 };
            // One step on all rows of a participant.
            spec.training.epochs = 1;
            spec.training.batch = 65_536;
            let bytes = florin_work::encode_parameters(spec, &Self { units: count }.parameters());
            spec.base_model = blob_digest(&bytes);
        });
        let bytes = florin_work::encode_parameters(&market.spec, &self.parameters());
        market.upload_blob(&bytes);
        market
    }

    fn parameters(&self) -> Vec<f32> {
        let width = (Self::BRIGHTNESS.end - Self::BRIGHTNESS.start) / self.units as f32;
        let threshold = |unit: usize| Self::BRIGHTNESS.start + width * unit as f32;
        let first = std::iter::repeat_n(Self::WEIGHT, Self::INPUTS * self.units);
        let biases = (0..self.units).map(|unit| -Self::WEIGHT * threshold(unit));
        // All units have the same part in each logit, so all see the same derivative of a row.
        let last = [1.0, 2.0, 4.0].into_iter().flat_map(|own| std::iter::repeat_n(own, self.units));
        first.chain(biases).chain(last).chain([0.0; 3]).collect()
    }

    /// The number of the participant's rows of which an update reveals every feature, to half of
    /// the distance between two features.
    fn rows_read(&self, update: &[f32], data: &Dataset) -> usize {
        let biases = &update[Self::INPUTS * self.units..][..self.units];
        let weights = |unit: usize| &update[unit * Self::INPUTS..][..Self::INPUTS];
        let mut read = vec![false; data.rows()];
        for unit in 0..self.units {
            let next = unit + 1;
            let less = |of: f32, with: Option<f32>| f64::from(of) - f64::from(with.unwrap_or(0.0));
            let divisor = less(biases[unit], biases.get(next).copied());
            let found: Vec<f64> = (0..Self::INPUTS)
                .map(|at| {
                    let with = (next < self.units).then(|| weights(next)[at]);
                    less(weights(unit)[at], with) / divisor
                })
                .collect();
            for (row, read) in read.iter_mut().enumerate() {
                let near =
                    |(own, found): (&f32, &f64)| (f64::from(*own) - found).abs() < 0.5 / 255.0;
                *read |= data.row(row).iter().zip(&found).all(near);
            }
        }
        read.iter().filter(|read| **read).count()
    }

    /// The rows that the public update of a round reveals.
    fn rows_read_in_round(&self, market: &TestMarket, round: u32, data: &Dataset) -> usize {
        let client = market.client();
        let report = client.report(market.task, RoundNumber(round)).unwrap().body;
        let limit = florin_work::update_bytes(&market.spec);
        let bytes = client.blob(report.entries[0].update, limit).unwrap();
        let mut update = vec![0.0; self.parameters().len()];
        florin_work::decode_update_into(&market.spec, &bytes, &mut update).unwrap();
        self.rows_read(&update, data)
    }
}

#[test]
fn a_trapped_model_is_refused_reads_rows_with_consent_and_none_under_noise() {
    // Three rounds of one step each.
    let at_epsilon_eight = noise(1_130_000, 8);
    for (units, least) in [(16, 2), (64, 10), (512, 30)] {
        let trap = Trap { units };
        let market = trap.start();
        let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
        let error = person.run(&market, None).unwrap_err();
        assert_eq!(error.code(), "MODEL_NOT_DERIVED", "by default");
        person.config.privacy = at_epsilon_eight;
        let error = person.run(&market, None).unwrap_err();
        assert_eq!(error.code(), "MODEL_NOT_DERIVED", "noise is no consent");

        person.config.privacy = None;
        person.config.accepted_models = vec![market.spec.base_model];
        assert!(person.run(&market, None).unwrap().finished);
        let read = trap.rows_read_in_round(&market, 1, &person.data);
        assert!(read >= least, "{units} units read {read} of 40 rows");
        let name = format!("rows of 40 read by a trap of {units} units, with consent, no noise");
        figure(&name, read as f64, "", Bar::None);

        let market = trap.start();
        let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
        person.config.accepted_models = vec![market.spec.base_model];
        person.config.privacy = at_epsilon_eight;
        assert!(person.run(&market, None).unwrap().finished);
        let epsilon = epsilon_micro(&person);
        assert!((7 * ONE..=8 * ONE).contains(&epsilon), "ε is {epsilon} millionths");
        let read = (1..=3).map(|round| trap.rows_read_in_round(&market, round, &person.data));
        let read: Vec<usize> = read.collect();
        let name = format!("the same in three rounds with --noise at ε = 8, {units} units");
        figure(&name, read.iter().sum::<usize>() as f64, "", Bar::AtMost(0.0));
        assert_eq!(read, [0; 3], "{units}");
    }
}

#[test]
fn a_restart_after_any_event_charges_each_round_once() {
    let run_to_end = |stop: Option<usize>| {
        let market = TestMarket::start(1, false);
        let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
        person.config.privacy = noise(4 * ONE, 100);
        if stop.is_some() {
            person.run(&market, stop).unwrap();
        }
        assert!(person.run(&market, None).unwrap().finished, "stopped after {stop:?}");
        let updates = (1..=3).map(|round| {
            market.client().report(market.task, RoundNumber(round)).unwrap().body.entries[0].update
        });
        let updates: Vec<Digest> = updates.collect();
        let delta = Delta::try_from(DELTA).unwrap();
        let folder = &person.config.folder;
        let charged = recorded_privacy(folder, market.task, delta).unwrap();
        assert_eq!(charged.len(), 3, "stopped after {stop:?}");
        assert_eq!(charged[2].epsilon.micro(), epsilon_micro(&person));
        assert!(person.failed_round_codes().is_empty(), "stopped after {stop:?}");
        (updates, charged, person.events.len())
    };
    let (updates, charged, events) = run_to_end(None);
    assert!(charged[0].epsilon < charged[1].epsilon && charged[1].epsilon < charged[2].epsilon);
    for stop in 1..events {
        let (same_updates, same_charges, _) = run_to_end(Some(stop));
        assert_eq!(same_updates, updates, "stopped after {stop}: the same noise");
        assert_eq!(same_charges, charged, "stopped after {stop}");
    }
}

#[test]
fn a_task_that_asks_for_more_noise_is_refused_before_the_bond() {
    let bounds = NOISE_MICRO_MIN..=NOISE_MICRO_MAX;
    assert_eq!(florin_protocol::NOISE_MIN_RANGE, Micro(*bounds.start())..=Micro(*bounds.end()));
    let market = TestMarket::start_with(1, false, |spec| spec.training.noise_min = Micro(4 * ONE));
    let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
    for (privacy, given) in [(None, "adds none"), (noise(4 * ONE - 1, 100), "is 3.999999")] {
        person.config.privacy = privacy;
        let error = person.run(&market, None).unwrap_err();
        assert_eq!(error.code(), "NOISE_TOO_LOW", "{error}");
        assert!(error.to_string().contains(given), "{error}");
        assert!(error.to_string().contains("at least 4 times"), "{error}");
        let account = person.wallet.address();
        assert!(market.ledger.bond_of(market.task, account).unwrap().amount.is_zero());
    }
    person.config.privacy = noise(4 * ONE, 100);
    assert!(person.run(&market, None).unwrap().finished);
}

#[test]
fn a_participation_ends_before_the_round_that_would_exceed_the_limit() {
    let market = TestMarket::start(1, false);
    let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
    // One round has an ε of 1.85, two of 2.50.
    person.config.privacy = noise(2 * ONE, 2);
    let done = person.run(&market, None).unwrap();
    assert_eq!(person.failed_round_codes(), ["EPSILON_EXHAUSTED"]);
    assert_eq!((done.finished, done.alarms, done.statements.len()), (false, 0, 1));
    assert!(matches!(done.bond, BondStatus::Locked(_)), "the bond was requested: {:?}", done.bond);
    assert!(epsilon_micro(&person) <= 2 * ONE, "{}", epsilon_micro(&person));
    assert_eq!(market.request_count("POST", "/commits"), 1);
    // A restart does not deposit again.
    let error = person.run(&market, None).unwrap_err();
    assert_eq!(error.code(), "EPSILON_EXHAUSTED", "{error}");
    let account = person.wallet.address();
    assert!(market.ledger.bond_of(market.task, account).unwrap().release.is_some());
    person.config.privacy = noise(2 * ONE, 50);
    assert!(person.run(&market, None).unwrap().finished);
    assert!(epsilon_micro(&person) > 2 * ONE);
}

#[test]
fn a_task_whose_steps_burn_epsilon_is_refused_before_the_bond() {
    let market = TestMarket::start_with(1, false, |spec| {
        spec.training.epochs = 1_000;
        spec.training.batch = 1;
    });
    let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
    person.config.privacy = noise(ONE, 8);
    let error = person.run(&market, None).unwrap_err();
    assert_eq!(error.code(), "EPSILON_EXHAUSTED", "{error}");
    let account = person.wallet.address();
    assert!(market.ledger.bond_of(market.task, account).unwrap().amount.is_zero());
    assert!(
        recorded_privacy(&person.config.folder, market.task, Delta::try_from(DELTA).unwrap())
            .unwrap()
            .is_empty()
    );
}

#[test]
fn a_folder_with_noise_sends_no_update_without_it() {
    let market = TestMarket::start(1, false);
    let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
    person.config.privacy = noise(4 * ONE, 100);
    let reported = |event: &ParticipantEvent| matches!(event, ParticipantEvent::Reported { .. });
    person.run_until(&market, reported).unwrap();
    person.config.privacy = None;
    let error = person.run(&market, None).unwrap_err();
    assert_eq!(error.code(), "NOISE_MISSING", "{error}");
    assert_eq!(person.engine.trained, 0, "no training without noise");
    person.config.privacy = noise(4 * ONE, 100);
    assert!(person.run(&market, None).unwrap().finished);
    // After the end nothing is sent, and the command may only claim.
    person.config.privacy = None;
    assert!(person.run(&market, None).unwrap().finished);
}

#[test]
fn no_epsilon_is_stated_for_a_folder_that_sent_updates_without_noise() {
    let market = TestMarket::start(1, false);
    let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
    let committed = |event: &ParticipantEvent| matches!(event, ParticipantEvent::Committed { .. });
    person.run_until(&market, committed).unwrap();
    person.config.privacy = noise(4 * ONE, 100);
    let error = person.run(&market, None).unwrap_err();
    assert_eq!(error.code(), "UNPROTECTED_UPDATES", "{error}");
    assert_eq!(market.request_count("POST", "/updates"), 0);
}

#[test]
fn an_update_that_was_trained_without_noise_is_trained_again() {
    let market = TestMarket::start(1, false);
    let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
    let trained = |event: &ParticipantEvent| matches!(event, ParticipantEvent::Trained { .. });
    person.run_until(&market, trained).unwrap();
    let path = person.config.folder.join(market.task.to_string()).join("1/update.safetensors");
    let plain = blob_digest(&std::fs::read(&path).unwrap());
    person.config.privacy = noise(4 * ONE, 100);
    assert!(person.run(&market, None).unwrap().finished);
    let sent = market.client().report(market.task, RoundNumber(1)).unwrap().body.entries[0].update;
    assert_ne!(sent, plain);
    assert_eq!(person.engine.trained, 1, "only the first training had no noise");
}

/// An observer must learn nothing from the participation itself.
#[test]
fn with_noise_neither_labels_nor_losses_decide_whether_an_update_is_sent() {
    let market = TestMarket::start(1, false);
    let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
    let holdout = rows(180, 99);
    let shifted = holdout.labels().iter().map(|label| (label + 1) % 3).collect();
    person.data = Dataset::new(holdout.features().to_vec(), shifted, 4, 3).unwrap();
    // Noise that drowns every update, which the task's norm limit then shortens.
    person.config.privacy = noise(1_000 * ONE, 8);
    let done = person.run(&market, None).unwrap();
    assert_eq!((done.finished, done.alarms, done.statements.len()), (true, 0, 3));
    assert!(person.failed_round_codes().is_empty(), "{:?}", person.failed_round_codes());
}

#[test]
fn an_experiment_and_a_large_delta_are_refused_before_the_bond() {
    let market = TestMarket::start(1, false);
    let code = |kind, delta: f64| {
        let mut person = TestParticipant::new(&market, 4, kind);
        let delta = Delta::try_from(delta).unwrap();
        person.config.privacy = noise(4 * ONE, 100).map(|config| PrivacyConfig { delta, ..config });
        person.run(&market, None).unwrap_err().code()
    };
    for kind in [BehaviourKind::Noise, BehaviourKind::Flipped, BehaviourKind::Idle] {
        assert_eq!(code(kind, DELTA), "INVALID_NOISE", "{kind}");
    }
    // 40 rows: at most a tenth of one in 40.
    assert_eq!(code(BehaviourKind::Honest, 0.002_6), "DELTA_TOO_LARGE");
    assert_eq!(market.request_count("POST", "/registrations"), 0);
}
