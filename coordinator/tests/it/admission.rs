//! Which accounts a task admits: open tasks, allow lists and invitations.

use florin_engine::{Event, EventStatus};
use florin_protocol::*;

use crate::support::*;
use crate::test_coordinator::{TestCoordinator, digits_spec};

const EXPIRES: Timestamp = Timestamp(500_000);

fn with_admission(admission: Admission) -> EngineFixture {
    EngineFixture::with_published_spec(TaskSpec { admission, ..spec() }, 4)
}

fn terms(world: &EngineFixture, nonce: u8) -> InvitationTerms {
    let nonce = Digest([nonce; 32]);
    InvitationTerms { market: market(), task: world.id, nonce, account: None, expires: EXPIRES }
}

fn invitation(terms: InvitationTerms) -> Invitation {
    terms.sign(&SeededWallet::number(BUYER)).unwrap()
}

fn enrol(world: &EngineFixture, who: u8, invitation: Option<Invitation>) -> Event {
    let (task, sender, expires) = (world.id, address(who), Timestamp(1_000_000));
    let enrol = EnrolRequest {
        market: market(),
        task,
        sender,
        invitation,
        quote_ms: 0,
        at_once: 0,
        expires,
    };
    Event::Enrolled { enrol: node(who).sign(enrol), bond: fln("5") }
}

#[test]
fn an_allow_list_admits_its_accounts_only() {
    let mut accounts = vec![address(1), address(3)];
    accounts.sort_unstable();
    let mut world = with_admission(Admission::AllowList { accounts });
    for (who, admitted) in [(1, true), (2, false), (3, true), (4, false)] {
        let event = enrol(&world, who, None);
        match admitted {
            true => drop(world.apply(event).unwrap()),
            false => assert_eq!(world.rejection_code(event), ErrorCode::NotAdmitted, "{who}"),
        }
    }
}

#[test]
fn an_invitation_admits_one_account_once() {
    let mut world = with_admission(Admission::Invitation);
    let uninvited = enrol(&world, 1, None);
    assert_eq!(world.rejection_code(uninvited), ErrorCode::NotAdmitted);
    let first = invitation(terms(&world, 1));
    let event = enrol(&world, 1, Some(first.clone()));
    assert_eq!(world.apply(event.clone()).unwrap().status, EventStatus::New);
    assert_eq!(world.apply(event).unwrap().status, EventStatus::Duplicate, "the same message");
    let event = enrol(&world, 1, None);
    assert_eq!(world.apply(event).unwrap().status, EventStatus::Duplicate, "it stays admitted");
    let event = enrol(&world, 2, Some(first));
    assert_eq!(world.rejection_code(event), ErrorCode::InvitationUsed);
    // A second invitation of an admitted account is not used up.
    let second = invitation(terms(&world, 2));
    world.apply(enrol(&world, 1, Some(second.clone()))).unwrap();
    world.apply(enrol(&world, 2, Some(second))).unwrap();
    assert_eq!(world.engine.state().tasks[&world.id].enrolled.len(), 2);
}

#[test]
fn an_invitation_for_something_else_is_refused_with_its_code() {
    type Change = fn(&mut InvitationTerms);
    let table: &[(&str, ErrorCode, Change)] = &[
        ("another market", ErrorCode::WrongMarket, |t| t.market.chain = ChainId(1)),
        ("another task", ErrorCode::InvalidInvitation, |t| t.task = TaskId([7; 32])),
        ("another account", ErrorCode::InvalidInvitation, |t| t.account = Some(address(2))),
        ("expired", ErrorCode::DeadlinePassed, |t| t.expires = Timestamp(999)),
    ];
    for (name, code, change) in table {
        let mut world = with_admission(Admission::Invitation);
        let mut terms = terms(&world, 1);
        change(&mut terms);
        let event = enrol(&world, 1, Some(invitation(terms)));
        assert_eq!(world.rejection_code(event), *code, "{name}");
    }
    let mut world = with_admission(Admission::Invitation);
    let own = InvitationTerms { account: Some(address(1)), ..terms(&world, 1) };
    world.apply(enrol(&world, 1, Some(invitation(own)))).unwrap();
}

#[test]
fn a_rejected_enrolment_does_not_use_its_invitation() {
    let mut world = with_admission(Admission::Invitation);
    let card = invitation(terms(&world, 1));
    let Event::Enrolled { enrol: signed, .. } = enrol(&world, 1, Some(card.clone())) else {
        unreachable!()
    };
    let poor = Event::Enrolled { enrol: signed, bond: fln("1") };
    assert_eq!(world.rejection_code(poor), ErrorCode::BondTooSmall);
    world.apply(enrol(&world, 2, Some(card))).unwrap();
}

#[test]
fn an_open_task_ignores_invitations() {
    let mut world = with_admission(Admission::Open);
    let card = invitation(terms(&world, 1));
    world.apply(enrol(&world, 1, Some(card.clone()))).unwrap();
    world.apply(enrol(&world, 2, Some(card))).unwrap();
    assert!(world.engine.state().tasks[&world.id].invitations.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_accepts_only_invitations_that_the_buyer_signed() {
    let dir = tempfile::tempdir().unwrap();
    let spec = TaskSpec { admission: Admission::Invitation, ..digits_spec() };
    let shop = TestCoordinator::open(dir.path(), spec);
    shop.publish().await;
    let (task, nonce) = (shop.id, Digest([1; 32]));
    let send = async |who: u8, invitation: Option<Invitation>| {
        let (sender, expires) = (address(who), Timestamp(1_000_000));
        let enrol = EnrolRequest {
            market: market(),
            task,
            sender,
            invitation,
            quote_ms: 0,
            at_once: 0,
            expires,
        };
        let sent: Result<(), Rejection> =
            shop.post(&format!("tasks/{task}/enrol"), &node(who).sign(enrol)).await;
        sent.map_err(|rejection| rejection.code)
    };
    let terms = InvitationTerms { market: market(), task, nonce, account: None, expires: EXPIRES };
    let forged = terms.sign(&SeededWallet::number(1)).unwrap();
    assert_eq!(send(1, Some(forged)).await, Err(ErrorCode::InvalidInvitation));
    let elsewhere = MarketId { chain: ChainId(1), ..market() };
    let moved = invitation(InvitationTerms { market: elsewhere, ..terms });
    assert_eq!(send(1, Some(moved)).await, Err(ErrorCode::WrongMarket));
    assert_eq!(send(1, None).await, Err(ErrorCode::NotAdmitted));
    assert_eq!(send(1, Some(invitation(terms))).await, Ok(()));
    assert_eq!(send(2, Some(invitation(terms))).await, Err(ErrorCode::InvitationUsed));
    shop.stop().await;
}
