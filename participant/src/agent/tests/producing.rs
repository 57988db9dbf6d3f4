//! An agent whose rows a running program writes.

use std::io::Write;
use std::net::TcpStream;

use florin_learning::RowEncoder;
use florin_learning::data::{FeatureEncoder, NumberScale};

use super::*;
use crate::producer::{FeedSettings, ProducerNews};

/// Rows before the first round, and further ones of each round.
const FIRST_ROWS: usize = 30;
const NEW_ROWS: usize = 10;

/// A feed whose rounds begin with [`FIRST_ROWS`] and with [`NEW_ROWS`] new ones.
fn feed() -> RowFeed {
    let features = FeatureEncoder::Uniform { width: 4, scale: NumberScale::IDENTITY };
    let encoder = RowEncoder { classes: 3, class_names: Vec::new(), features, target: None };
    let new_rows_min = NEW_ROWS as u64;
    let settings = FeedSettings { capacity: 100, rows_min: FIRST_ROWS, new_rows_min, seed: 7 };
    RowFeed::start(&"tcp:127.0.0.1:0#label".parse().unwrap(), encoder, settings).unwrap()
}

/// Writes rows, as a program that connects again each time.
fn write_rows(address: &str, count: usize) {
    let data = rows(count, count as u64);
    let mut text = "a,b,c,d,label\n".to_owned();
    for (row, label) in data.labels().iter().enumerate() {
        for value in data.row(row) {
            text.push_str(&format!("{value},"));
        }
        text.push_str(&format!("{label}\n"));
    }
    TcpStream::connect(address).unwrap().write_all(text.as_bytes()).unwrap();
}

impl TestParticipant {
    fn with_feed(market: &TestMarket) -> Self {
        let mut person = Self::new(market, 4, BehaviourKind::Honest);
        let feed = feed();
        person.data = feed.empty_rows().clone();
        person.producer = Some(feed);
        person.config.poll_ms = 50;
        person
    }

    fn address(&self) -> String {
        self.producer.as_ref().unwrap().address().to_owned()
    }
}

/// The round and the rows of each sample.
fn samples(events: &[ParticipantEvent]) -> Vec<(u32, u64)> {
    let taken = |event: &ParticipantEvent| match event {
        ParticipantEvent::Producer { news: ProducerNews::Taken { round, rows, .. } } => {
            Some((round.0, *rows))
        }
        _ => None,
    };
    events.iter().filter_map(taken).collect()
}

fn rows_declared(market: &TestMarket) -> Vec<u64> {
    let report = |round| market.client().report(market.task, RoundNumber(round)).unwrap().body;
    (1..=3).flat_map(|round| report(round).entries).map(|entry| entry.rows_declared).collect()
}

#[test]
fn every_update_declares_the_rows_of_its_sample() {
    let market = TestMarket::start(1, false);
    let mut person = TestParticipant::with_feed(&market);
    let address = person.address();
    write_rows(&address, FIRST_ROWS);
    let done = person.run_until(&market, |event| {
        if let ParticipantEvent::Producer { news: ProducerNews::Taken { .. } } = event {
            write_rows(&address, NEW_ROWS);
        }
        false
    });
    let done = done.unwrap();
    assert!(done.finished && done.claimed > Amount::ZERO, "{done:?}");
    assert_eq!(samples(&person.events), [(1, 30), (2, 40), (3, 50)]);
    assert_eq!(rows_declared(&market), [30, 40, 50]);
    assert_eq!(done.bond, BondStatus::Returned(fln("5")), "100 rows of the reservoir at 0.05");
    let trained = person.events.iter().filter_map(|event| match event {
        ParticipantEvent::Trained { rows, .. } => Some(*rows),
        _ => None,
    });
    assert_eq!(trained.collect::<Vec<_>>(), [30, 40, 50]);
}

#[test]
fn nothing_is_bonded_before_the_first_rows_are_there() {
    let market = TestMarket::start(1, false);
    let mut person = TestParticipant::with_feed(&market);
    let is_wait = |event: &ParticipantEvent| {
        matches!(
            event,
            ParticipantEvent::Producer { news: ProducerNews::Waiting { round: None, .. } }
        )
    };
    person.run_until(&market, is_wait).unwrap();
    let bond = market.ledger.bond_of(market.task, person.wallet.address()).unwrap();
    assert!(bond.amount.is_zero());
    assert_eq!(market.request_count("POST", ""), 0);
}

#[test]
fn an_update_from_before_a_restart_declares_its_own_rows() {
    let market = TestMarket::start(1, false);
    let mut person = TestParticipant::with_feed(&market);
    write_rows(&person.address(), FIRST_ROWS);
    let is_trained = |event: &ParticipantEvent| matches!(event, ParticipantEvent::Trained { .. });
    person.run_until(&market, is_trained).unwrap();
    assert_eq!((person.engine.trained, market.request_count("POST", "/commits")), (1, 0));
    // The reservoir is empty after the restart, and gets other rows.
    person.producer = Some(feed());
    let address = person.address();
    let again = person.run_until(&market, |event| {
        if let ParticipantEvent::Committed { round } = event {
            write_rows(&address, if round.0 == 1 { FIRST_ROWS } else { NEW_ROWS });
        }
        false
    });
    assert!(again.unwrap().finished);
    assert_eq!(person.engine.trained, 3);
    assert_eq!(rows_declared(&market), [30, 30, 40]);
}

#[test]
fn a_round_without_enough_rows_fails_and_the_next_one_goes_on() {
    let market = TestMarket::start(1, false);
    let mut person = TestParticipant::with_feed(&market);
    let address = person.address();
    write_rows(&address, FIRST_ROWS);
    let done = person.run_until(&market, |event| {
        if let ParticipantEvent::Producer { news } = event
            && let ProducerNews::Waiting { round: Some(round), .. } = news
        {
            match round.0 {
                2 => market.pass_commit_deadline(),
                _ => write_rows(&address, NEW_ROWS),
            }
        }
        false
    });
    assert!(done.unwrap().finished);
    assert_eq!(person.failed_round_codes(), ["ROWS_MISSING"]);
    assert_eq!(samples(&person.events), [(1, 30), (3, 40)]);
    let counts = person.producer.as_ref().unwrap().counts();
    assert_eq!((counts.rows_seen, counts.trainer_slow_ms), (40, 0), "{counts:?}");
}

#[test]
fn noise_and_a_producer_are_refused_together() {
    use florin_learning::privacy::{ClipAndNoise, Delta, RowPrivacy};
    use florin_protocol::Micro;

    use crate::privacy::{Epsilon, PrivacyConfig};

    let market = TestMarket::start(1, false);
    let mut person = TestParticipant::with_feed(&market);
    let wanted = ClipAndNoise { clip_micro: 1_000_000, noise_micro: 2_000_000 };
    person.config.privacy = Some(PrivacyConfig {
        noise: RowPrivacy::try_from(wanted).unwrap(),
        delta: Delta::try_from(1e-5).unwrap(),
        epsilon_max: Epsilon::from(Micro(8_000_000)),
    });
    assert_eq!(person.run(&market, None).unwrap_err().code(), "NOISE_UNSUPPORTED");
}

#[test]
fn a_producer_of_wrong_rows_alone_ends_the_participation_with_a_code() {
    let market = TestMarket::start(1, false);
    let mut person = TestParticipant::with_feed(&market);
    let mut stream = TcpStream::connect(person.address()).unwrap();
    let wrong = "1,2\n".repeat(crate::REFUSED_IN_A_ROW_MAX as usize + 1);
    stream.write_all(format!("a,b,c,d,label\n{wrong}").as_bytes()).unwrap();
    let error = person.run(&market, None).unwrap_err();
    assert_eq!(error.code(), "PRODUCER_INVALID", "{error}");
    assert!(error.to_string().contains("2 cells; the header has 5 names"), "{error}");
}
