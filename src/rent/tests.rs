//! Histories of leases whose actions are signed: reasons, statements and statistics.

use std::collections::BTreeMap;

use florin_compute::{
    Bid, Checkpoint, ComputeAction, ComputeOrder, LeaseAction, LeaseOpening, LeaseOutcome,
    LeaseRecord, MarketStatistics, OrderMoney, Phase, RecordedAction, Secret, StepTimes,
    beacon_commitment, bid_commitment, end_commitment, segment_leaf,
};
use florin_participant::{Secret as KeySecret, Wallet};
use florin_protocol::{Address, Amount, Digest, Timestamp, WalletSigner};

use super::*;

const SALT: Digest = Digest([9; 32]);
const BEACON: Digest = Digest([77; 32]);

fn units(units: u128) -> Amount {
    Amount::from_units(units)
}

fn wallet(number: u8) -> Wallet {
    Wallet::from_key(&KeySecret::new(format!("{:064x}", u32::from(number) + 1))).unwrap()
}

/// The wallets: a renter, a referee, two bidders and two auditors.
const RENTER: usize = 0;
const REFEREE: usize = 1;
const ANN: usize = 2;
const BEN: usize = 3;
const AUDITORS: [usize; 2] = [4, 5];

/// A lease of two segments, one of which is audited, with the program of each account.
struct Play {
    wallets: Vec<Wallet>,
    history: LeaseHistory,
    now: Timestamp,
    news: Vec<LeaseNews>,
}

impl Play {
    fn open() -> Self {
        let wallets: Vec<Wallet> = (0..6).map(wallet).collect();
        let example = ComputeOrder::example();
        let order = ComputeOrder {
            renter: wallets[RENTER].address(),
            referee: wallets[REFEREE].address(),
            segments: 2,
            steps: 1,
            deposits: florin_compute::Deposits {
                stake: units(100_000),
                ..example.deposits.clone()
            },
            ..example
        };
        let now = Timestamp(1_000);
        let beacon = beacon_commitment(order.id(), BEACON);
        let history = LeaseHistory::open(LeaseOpening { order, opened: now, beacon }).unwrap();
        Self { wallets, history, now, news: Vec::new() }
    }

    fn address(&self, account: usize) -> Address {
        self.wallets[account].address()
    }

    #[track_caller]
    fn push(&mut self, action: RecordedAction) -> LeaseNews {
        let record = LeaseRecord { at: self.now, action };
        let news = self.history.push(&record).unwrap();
        self.news.push(news.clone());
        news
    }

    #[track_caller]
    fn act(&mut self, account: usize, action: ComputeAction) -> LeaseNews {
        let by = self.address(account);
        let order = self.history.lease().order().clone();
        let nonce = self.history.recorded().next_nonce(by);
        let body = LeaseAction { order: order.id(), by, nonce, action };
        let signed = body.sign(order.market, &self.wallets[account]).unwrap();
        self.push(RecordedAction::Signed(Box::new(signed)))
    }

    fn expire(&mut self) -> LeaseNews {
        self.now = self.history.lease().phase().1.saturating_add_ms(1);
        self.push(RecordedAction::Expired)
    }

    /// The coordinator uses the checkpoints that the provider left. Returns the action in words.
    fn use_checkpoints(&mut self) -> String {
        let lease = self.history.lease();
        self.now = lease.phase().1.saturating_add_ms(1);
        let needed = lease.checkpoints_needed().into_iter();
        let checkpoint = |segment| Checkpoint { segment, secret: self.secret(segment) };
        let action = RecordedAction::Checkpoints(needed.map(checkpoint).collect());
        self.push(action).action
    }

    /// Ann's bid wins; Ben's is the second score.
    fn awarded() -> Self {
        let mut play = Self::open();
        let id = play.history.lease().order().id();
        let bid = |per_second, us| {
            let times = StepTimes::new(vec![us]).unwrap();
            Bid { per_second: units(per_second), devices: 1, times }
        };
        let bids = BTreeMap::from([(ANN, bid(100_000_000, 10)), (BEN, bid(110_000_000, 10))]);
        for (bidder, bid) in &bids {
            let sealed = bid_commitment(id, play.address(*bidder), bid, SALT);
            play.act(*bidder, ComputeAction::SealBid(sealed));
        }
        AUDITORS.iter().for_each(|auditor| drop(play.act(*auditor, ComputeAction::JoinAudit)));
        play.expire();
        for (bidder, bid) in bids {
            play.act(bidder, ComputeAction::OpenBid { bid, salt: SALT });
        }
        play
    }

    /// Only these auditors join before the bids end.
    fn bidding_ended(auditors: &[usize]) -> Self {
        let mut play = Self::open();
        auditors.iter().for_each(|auditor| drop(play.act(*auditor, ComputeAction::JoinAudit)));
        while play.history.lease().outcome().is_none() {
            play.expire();
        }
        play
    }

    /// The state after the segments before a number.
    fn state(&self, segment: u32) -> Digest {
        match segment {
            0 => self.history.lease().order().start,
            number => Digest([40 + number as u8; 32]),
        }
    }

    fn secret(&self, segment: u32) -> Secret {
        Secret { end: self.state(segment + 1), salt: SALT }
    }

    fn deliver(&mut self, segment: u32) {
        let (id, by) = (self.history.lease().order().id(), self.address(ANN));
        let leaf = segment_leaf(id, by, segment, self.secret(segment));
        self.act(ANN, ComputeAction::Deliver { segment, leaf });
    }

    /// Both segments are delivered and one is drawn, whose start is served.
    fn served() -> (Self, u32) {
        let mut play = Self::awarded();
        play.act(ANN, ComputeAction::Fund);
        play.deliver(0);
        play.deliver(1);
        play.push(RecordedAction::Beacon(BEACON));
        let drawn = play.history.lease().audited().next().unwrap().0;
        let start = play.state(drawn);
        play.act(ANN, ComputeAction::Serve { segment: drawn, start });
        (play, drawn)
    }

    fn seal(&mut self, auditor: usize, segment: u32, secret: Secret) {
        let id = self.history.lease().order().id();
        let sealed = end_commitment(id, self.address(auditor), segment, secret);
        self.act(auditor, ComputeAction::SealEnd { segment, sealed });
    }

    /// The provider opens its leaf of the drawn segment, and the result if that is another one.
    fn open_leaves(&mut self, drawn: u32) {
        let segments: &[u32] = if drawn == 1 { &[1] } else { &[drawn, 1] };
        for &segment in segments {
            let secret = self.secret(segment);
            self.act(ANN, ComputeAction::OpenLeaf { segment, secret, salt_before: SALT });
        }
    }

    fn statement(&self, account: usize) -> AccountStatement {
        let address = self.address(account);
        let all = account_statements(&self.history).unwrap();
        all.into_iter().find(|statement| statement.account == address).unwrap()
    }

    /// The deposits of each account are somewhere.
    fn check_sums(&self) {
        for statement in account_statements(&self.history).unwrap() {
            let AccountStatement { deposited, lost, returned, locked, paid, .. } = &statement;
            let found = Amount::total([*lost, *returned, *locked]).unwrap();
            if statement.roles == ["renter"] {
                let pay = account_statements(&self.history).unwrap();
                let pay = Amount::total(pay.iter().map(|statement| statement.paid)).unwrap();
                assert_eq!(found.plus(pay), Ok(*deposited));
            } else {
                assert_eq!(found, *deposited, "{statement:?} {paid}");
            }
        }
    }
}

#[test]
fn an_honest_lease_pays_provider_and_auditors() {
    let (mut play, drawn) = Play::served();
    for auditor in AUDITORS {
        let secret = play.secret(drawn);
        play.seal(auditor, drawn, secret);
    }
    for auditor in AUDITORS {
        let secret = play.secret(drawn);
        play.act(auditor, ComputeAction::OpenEnd { segment: drawn, secret });
    }
    play.open_leaves(drawn);
    assert_eq!(play.history.lease().outcome(), Some(LeaseOutcome::Settled));
    play.check_sums();
    let ann = play.statement(ANN);
    assert_eq!((ann.roles.as_slice(), ann.lost), (&["bidder", "provider"][..], units(0)));
    // Two steps of 10 µs at 110 units a microsecond: the second price.
    // The bond of the bid is a part of the stake.
    assert_eq!(
        (ann.paid, ann.deposited, ann.returned),
        (units(2_200), units(100_000), units(100_000))
    );
    let renter = play.statement(RENTER);
    assert_eq!(renter.spent, units(2_200 + 2 * 700));
    assert!(renter.sentences().iter().any(|line| line.contains("of its escrow: the pay of")));
    assert!(ann.sentences()[0].ends_with("2 of 2 segments delivered."), "{:?}", ann.sentences());
    let auditor = play.statement(AUDITORS[0]);
    assert_eq!((auditor.paid, auditor.roles.as_slice()), (units(700), &["auditor"][..]));
    assert!(auditor.sentences()[0].contains("1 audit at "), "{:?}", auditor.sentences());
    let last = play.news.last().unwrap();
    assert_eq!(last.phase.map(|(phase, _)| phase), Some(Phase::Over));
    assert_eq!(last.transfers.len(), 3);
}

#[test]
fn an_order_that_is_not_awarded_has_the_reason() {
    // Two auditors, and no winner that funds.
    let mut play = Play::awarded();
    assert_eq!(play.history.ended(), None);
    play.expire();
    play.expire();
    assert_eq!(play.history.lease().outcome(), Some(LeaseOutcome::Unawarded));
    assert_eq!(play.history.ended().unwrap(), "not awarded: no provider");
    let alone = Play::bidding_ended(&[AUDITORS[0]]);
    assert_eq!(alone.history.ended().unwrap(), "not awarded: 1 of 2 auditors");
}

#[test]
fn silence_names_its_phase() {
    let mut play = Play::awarded();
    let news = play.expire();
    assert_eq!(news.action, "the deadline of the phase funding passed");
    assert!(play.statement(ANN).transfers[0].reason.starts_with("silence in the phase funding"));
    // Ben is next, and stops before its first segment.
    play.act(BEN, ComputeAction::Fund);
    play.expire();
    let ben = play.statement(BEN);
    let reason = "silence in the phase running: segment 0 was not delivered by its deadline";
    assert_eq!((ben.transfers[0].reason.as_str(), ben.lost), (reason, units(2_000)));
    assert_eq!(play.history.lease().outcome(), Some(LeaseOutcome::Defaulted { delivered: 0 }));
    play.check_sums();

    let mut play = Play::open();
    let id = play.history.lease().order().id();
    for bidder in [ANN, BEN] {
        let times = StepTimes::new(vec![41]).unwrap();
        let bid = Bid { per_second: units(1), devices: 1, times };
        let sealed = bid_commitment(id, play.address(bidder), &bid, SALT);
        play.act(bidder, ComputeAction::SealBid(sealed));
        if bidder == ANN {
            AUDITORS.iter().for_each(|auditor| drop(play.act(*auditor, ComputeAction::JoinAudit)));
        }
    }
    play.expire();
    let times = StepTimes::new(vec![41]).unwrap();
    play.act(
        ANN,
        ComputeAction::OpenBid { bid: Bid { per_second: units(1), devices: 1, times }, salt: SALT },
    );
    play.expire();
    let reason = |account| play.statement(account).transfers[0].reason.clone();
    assert!(reason(ANN).starts_with("its bid could not win"), "{}", reason(ANN));
    assert_eq!(reason(BEN), "silence in the phase revealing: it did not open its bid");
}

#[test]
fn a_silent_auditor_and_a_silent_provider_lose_their_deposits() {
    let (mut play, drawn) = Play::served();
    let secret = play.secret(drawn);
    play.seal(AUDITORS[0], drawn, secret);
    play.expire();
    let silent = play.statement(AUDITORS[1]);
    let reason = format!("silence in the phase auditing: it sealed no end of segment {drawn}");
    assert_eq!((silent.lost, silent.transfers[0].reason.as_str()), (units(8_000), reason.as_str()));
    // The provider opens nothing.
    play.act(AUDITORS[0], ComputeAction::OpenEnd { segment: drawn, secret });
    play.expire();
    let ann = play.statement(ANN);
    let reason =
        format!("silence in the phase opening: it did not open the leaf of segment {drawn}");
    assert_eq!((ann.lost, ann.transfers[0].reason.as_str()), (units(100_000), reason.as_str()));
    play.check_sums();
}

#[test]
fn a_ruling_names_referee_auditor_and_segment() {
    for is_auditor_right in [true, false] {
        let (mut play, drawn) = Play::served();
        let (right, wrong) = (play.secret(drawn), Secret { end: Digest([99; 32]), salt: SALT });
        play.seal(AUDITORS[0], drawn, right);
        play.seal(AUDITORS[1], drawn, wrong);
        play.act(AUDITORS[0], ComputeAction::OpenEnd { segment: drawn, secret: right });
        play.act(AUDITORS[1], ComputeAction::OpenEnd { segment: drawn, secret: wrong });
        play.open_leaves(drawn);
        // A segment of one step needs no halving.
        assert_eq!(play.history.lease().phase().0, Phase::Refereeing);
        let after = if is_auditor_right { wrong.end } else { right.end };
        play.act(REFEREE, ComputeAction::Rule(after));
        play.check_sums();
        let (ann, auditor) = (play.statement(ANN), play.statement(AUDITORS[1]));
        let referee = play.address(REFEREE).short();
        if is_auditor_right {
            let reason = &ann.transfers[0].reason;
            for part in [&referee, &auditor.account.short(), &format!("segment {drawn}")] {
                assert!(reason.contains(part.as_str()), "{reason:?} lacks {part}");
            }
            // The fee, and the bounty of a tenth.
            assert_eq!((auditor.paid, ann.lost), (units(7_700), units(100_000)));
            assert!(auditor.transfers[0].reason.contains("1 audit at"), "{auditor:?}");
            assert!(auditor.transfers[0].reason.contains("the bounty"), "{auditor:?}");
        } else {
            assert_eq!((auditor.lost, ann.lost), (units(8_000), units(0)));
            assert!(auditor.transfers[0].reason.contains(&referee), "{auditor:?}");
        }
    }
}

/// A provider that is gone behind its delivery: the coordinator's checkpoints, and a ruling on a wrong auditor.
#[test]
fn the_history_of_a_gone_provider_has_its_checkpoints() {
    let mut play = Play::awarded();
    play.act(ANN, ComputeAction::Fund);
    play.deliver(0);
    play.deliver(1);
    play.push(RecordedAction::Beacon(BEACON));
    let drawn = play.history.lease().audited().next().unwrap().0;
    let words = play.use_checkpoints();
    assert!(words.contains("serves the starts, by the checkpoints"), "{words}");
    let (right, wrong) = (play.secret(drawn), Secret { end: Digest([99; 32]), salt: SALT });
    for (auditor, secret) in AUDITORS.into_iter().zip([right, wrong]) {
        play.seal(auditor, drawn, secret);
    }
    for (auditor, secret) in AUDITORS.into_iter().zip([right, wrong]) {
        play.act(auditor, ComputeAction::OpenEnd { segment: drawn, secret });
    }
    let words = play.use_checkpoints();
    assert!(words.contains("opens the leaves, by the checkpoints"), "{words}");
    play.act(REFEREE, ComputeAction::Rule(right.end));
    play.check_sums();
    let (ann, liar) = (play.statement(ANN), play.statement(AUDITORS[1]));
    assert!(ann.lost.is_zero() && !ann.paid.is_zero());
    assert!(liar.transfers[0].reason.contains("computed another state"), "{liar:?}");
}

fn order(history: &LeaseHistory) -> MarketOrder {
    let order = history.lease().order();
    MarketOrder {
        id: order.id(),
        renter: order.renter,
        segments: order.segments,
        class: order.class,
        money: OrderMoney::Locked,
        history: Some(history.clone()),
    }
}

/// Ann delivers one of two segments, and stops.
fn stopped() -> Play {
    let mut stopped = Play::awarded();
    stopped.act(ANN, ComputeAction::Fund);
    stopped.now = stopped.now.saturating_add_ms(250);
    stopped.deliver(0);
    stopped.expire();
    // No audit is drawn; the only delivered segment is the result.
    stopped.expire();
    let secret = stopped.secret(0);
    stopped.act(ANN, ComputeAction::OpenLeaf { segment: 0, secret, salt_before: SALT });
    stopped
}

/// An account's orders add up, and those that its referee cancelled count for nothing.
#[test]
fn earnings_are_the_sum_of_the_statements_of_all_orders() {
    let stopped = stopped();
    let (own, mut cancelled) = (stopped.statement(ANN), order(&stopped.history));
    cancelled.money = OrderMoney::Cancelled;
    let orders = [order(&stopped.history), order(&Play::open().history), cancelled];
    let of = |account| Earnings::of(stopped.address(account), &orders, &[]).unwrap();
    let ann = of(ANN);
    assert_eq!((ann.orders.len(), ann.net), (2, Net { gained: own.paid, lost: own.lost }));
    assert!(own.paid > Amount::ZERO && own.lost == units(2_000), "{own:?}");
    // Both orders have the same record, whose time counts once.
    let (from, to) = stopped.history.observed().ran().unwrap();
    assert_eq!((ann.computed_ms, ann.has_services()), (to.ms_since(from), true));
    assert!(ann.computed_ms >= 250);
    let (began, last) = ann.period.unwrap();
    assert_eq!(began, Timestamp(1_000));
    assert!(last >= to && ann.per_hour().is_some());
    let json = ann.to_json(stopped.address(ANN));
    assert_eq!(json["orders"][1]["cancelled"], true);
    let net = own.lost.minus(own.paid).unwrap();
    assert_eq!(json["net"], format!("-{}", net.units()));
    let renter = of(RENTER);
    assert_eq!((renter.orders.len(), renter.has_services()), (3, false));
    assert_eq!(renter.spent, stopped.statement(RENTER).spent);
    let ben = of(BEN);
    assert_eq!((ben.computed_ms, ben.has_services(), ben.per_computed_hour()), (0, true, None));
}

#[test]
fn the_market_counts_leases_prices_and_time() {
    let stopped = stopped();
    let open = Play::open();
    let orders = [order(&stopped.history), order(&open.history)];
    let statistics =
        MarketStatistics::from_leases(orders.iter().filter_map(MarketOrder::facts)).unwrap();
    let ann = &statistics.providers[&stopped.address(ANN)];
    assert_eq!((ann.won, ann.delivered, ann.defaulted, ann.slashed), (1, 0, 1, 0));
    assert_eq!((ann.segments, ann.lost), (1, units(2_000)));
    // 2,200 units buy 20 µs: 110 units a microsecond.
    let per_hour = units(110 * 3_600_000_000);
    assert_eq!((ann.per_hour(), statistics.median), (Some(per_hour), Some(per_hour)));
    assert_eq!((orders[0].price(), orders[1].price()), (Some(units(2_200)), None));
    assert_eq!((statistics.days.len(), statistics.days[0].awards), (1, 1));
    let share = statistics.utilisation(ann);
    assert!(share > 0 && share == statistics.utilisation_of_all(), "{share}");
    assert_eq!(statistics_json(&statistics)["providers"][0]["won"], 1);
    // A cancelled settlement pays and debits no account; its price was agreed all the same.
    let cancelled = [order(&stopped.history)]
        .map(|order| MarketOrder { money: OrderMoney::Cancelled, ..order });
    let statistics =
        MarketStatistics::from_leases(cancelled.iter().filter_map(MarketOrder::facts)).unwrap();
    let ann = &statistics.providers[&stopped.address(ANN)];
    assert_eq!((ann.won, ann.defaulted, ann.lost, ann.earned), (1, 0, Amount::ZERO, Amount::ZERO));
    assert_eq!(ann.per_hour(), Some(per_hour));
}
