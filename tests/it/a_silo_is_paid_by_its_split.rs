//! A silo is one sender, and its split pays its members: the silo's head can neither change it nor
//! claim around it, and any member sends the claim.

use florin_ledger::MemberShare;
use florin_ledger::split::member_payments;
use florin_protocol::{Amount, Micro, Report, RoundNumber, TaskId};

use crate::support::market::words;
use crate::support::process::{Process, florin, until};
use crate::support::{On, TestMarket, TestPlan, on_both};

on_both!(a_silo_is_paid_by_its_split);

/// The silo's account is Ann's: Ann trains, and keeps half of the pay. Deb and Eve have the rest.
const SHARES: [(&str, u64); 3] = [("ann", 500_000), ("deb", 299_999), ("eve", 200_001)];

fn split(market: &TestMarket) -> Vec<MemberShare> {
    let share = |(name, share)| MemberShare { member: market.account(name), share: Micro(share) };
    let mut members = SHARES.map(share).to_vec();
    members.sort_by_key(|each| each.member);
    members
}

/// The arguments of `--member` for these members.
fn listed(members: &[MemberShare]) -> Vec<String> {
    let each = members.iter().rev();
    each.flat_map(|each| ["--member".to_owned(), format!("{}={}", each.member, each.share)])
        .collect()
}

fn a_silo_is_paid_by_its_split(on: On) {
    let mut plan = TestPlan::honest(on, 3);
    plan.others = vec!["deb", "eve"];
    plan.provider = false;
    let market = TestMarket::open(plan);
    market.change_task(&[("challenge = \"100 ms\"", "challenge = \"5 s\"")]);
    let task = market.publish();
    let (id, ann) = (task.to_string(), market.account("ann"));
    let members = split(&market);
    let silo = |name: &str, command: &str, rest: &[String]| {
        let call = [words(&["silo", command, "--task", &id]), rest.to_vec()].concat();
        market.run_command_as(name, &call.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let of_ann = words(&["--account", &ann.to_string()]);

    // A participation that expects a split deposits nothing without it.
    let file = market.file("split.toml");
    let rows = members.iter().map(|each| format!("{} = \"{}\"\n", each.member, each.share));
    std::fs::write(&file, format!("[members]\n{}", rows.collect::<String>())).unwrap();
    silo("deb", "claim", &of_ann).refused(1, "NO_SPLIT");
    let call = market.participant_call(&market.url, task, "ann");
    let silo_call = [call, words(&["--split", &file])].concat();
    florin(&silo_call).refused(1, "SPLIT_DIFFERS");
    assert!(market.ledger().bond_of(task, ann).unwrap().amount.is_zero());

    let mut wrong = members.clone();
    wrong[0].share.0 += 1;
    silo("ann", "split", &listed(&wrong)).refused(2, "SPLIT_INVALID");
    let set = silo("ann", "split", &listed(&members)).expect(0);
    assert!(set.out.contains("0.299999"), "{}", set.out);
    assert_eq!(market.ledger().split_of(task, ann).unwrap(), members);

    let mut all: Vec<Process> = ["ben", "cy"].map(|name| market.participant(task, name)).into();
    let mut head = Process::start(market.folder(), "ann", &silo_call);
    market.wait_for_enrolled(task, 3);
    // The head would prefer to have all of it, and another member joins too late.
    let alone = [MemberShare { member: ann, share: Micro::ONE }];
    silo("ann", "split", &listed(&alone)).refused(1, "SPLIT_FIXED");
    silo("ben", "split", &listed(&members)).refused(1, "SPLIT_TOO_LATE");
    silo("ann", "split", &words(&["--file", &file])).expect(0);

    // Killed with the last report: its last pay is not final yet.
    let client = market.client();
    let last = until("the last report", || client.report(task, RoundNumber(3)).ok()).body;
    head.kill();
    assert!(head.log().contains("all pay goes to the 3 members"), "{}", head.log());
    let earned = last.account_totals[&ann].data;
    until("its final root", || (market.books(task).root == last.root).then_some(()));
    let ledger = market.ledger();
    let before = ledger.claimed_totals(task, ann).unwrap().paid;
    assert!(before < earned, "{before} of {earned} is claimed");
    assert_eq!(shown(&market, task, "received"), before.units());
    assert_eq!(shown(&market, task, "claimable"), earned.units() - before.units());

    // A member sends the claim, and the silo's head finds nothing to claim for itself.
    let claim = silo("deb", "claim", &[of_ann, words(&["--json"])].concat()).expect(0).json();
    assert_eq!(claim["paid"], (earned.units() - before.units()).to_string());
    let own = market.run_command_as("ann", &["claim", &id, "--json"]).expect(0).json();
    assert_eq!((&own["paid"], &own["members"]), (&"0".into(), &3.into()));

    assert_members_are_named(&market, &id, &ann.to_string());
    assert_paid_to_the_unit(&market, &last);
    assert_eq!(shown(&market, task, "claimable"), 0);
    all.iter_mut().for_each(Process::finish);
}

fn assert_members_are_named(market: &TestMarket, id: &str, ann: &str) {
    for shown in [
        market.run_command(&["statement", id, ann]),
        market.run_command(&["balance", ann]),
        market.run_command_as("ann", &["claim", id]),
    ] {
        let out = shown.expect(0).out;
        assert!(out.contains("goes to 3 members: florin silo show"), "{out}");
    }
}

/// The sum of a column that `florin silo show` prints, which needs no key of the silo.
fn shown(market: &TestMarket, task: TaskId, name: &str) -> u128 {
    let (id, ann) = (task.to_string(), market.account("ann").to_string());
    let show = ["silo", "show", "--task", &id, "--account", &ann];
    let text = market.run_command(&show).expect(0).out;
    for title in ["member", "share", "received, FLN", "claimable now, FLN", "0.299999"] {
        assert!(text.contains(title), "{title} in {text}");
    }
    let shown = market.run_command(&[&show[..], &["--json"]].concat()).expect(0).json();
    let rows = shown["members"].as_array().unwrap();
    rows.iter().map(|row| row[name].as_str().unwrap().parse::<u128>().unwrap()).sum()
}

/// Every member has its part of all pay; the silo's account also bears its bond and its debits.
fn assert_paid_to_the_unit(market: &TestMarket, last: &Report) {
    let (ledger, members, ann) = (market.ledger(), split(market), market.account("ann"));
    let earned = last.account_totals[&ann].data;
    let parts = member_payments(&members, Amount::ZERO, earned).unwrap();
    assert_eq!(Amount::total(parts.iter().copied()).unwrap(), earned);
    let bond = ledger.bond_of(last.scope.task, ann).unwrap().amount;
    let debited = last.account_totals[&ann].debited;
    for (each, part) in members.iter().zip(parts) {
        let purse: Amount = "50".parse().unwrap();
        let mut expected = purse.plus(part).unwrap();
        if each.member == ann {
            expected = expected.minus(bond).unwrap().minus(debited).unwrap();
        }
        assert_eq!(ledger.balance(each.member).unwrap(), expected, "{}", each.member);
        assert!(!part.is_zero());
    }
}
