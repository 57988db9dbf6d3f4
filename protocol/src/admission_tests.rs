//! Invitations: the text form, and which are valid.

use super::*;
use crate::signature::tests::{TestWallet, market, wallet};

fn buyer() -> TestWallet {
    wallet(1)
}

fn invitation(account: Option<Address>) -> Invitation {
    let (task, nonce) = (TaskId([2; 32]), Digest([3; 32]));
    let terms = InvitationTerms { market: market(1), task, nonce, account, expires: Timestamp(7) };
    terms.sign(&buyer()).unwrap()
}

/// A change of an invitation that its signature does not cover.
type Forgery = (&'static str, fn(&mut Invitation));

#[test]
fn an_invitation_with_any_field_changed_is_refused() {
    let forgeries: &[Forgery] = &[
        ("another task", |i| i.task = TaskId([4; 32])),
        ("another nonce", |i| i.nonce = Digest([4; 32])),
        ("another account", |i| i.account = Some(Address([4; 20]))),
        ("any account", |i| i.account = None),
        ("a later expiry", |i| i.expires = Timestamp(8)),
        ("another signature", |i| i.signature.0[10] ^= 1),
    ];
    for account in [None, Some(Address([5; 20]))] {
        let good = invitation(account);
        good.verify(market(1), buyer().address()).unwrap();
        for (name, forge) in forgeries {
            let mut forged = good.clone();
            forge(&mut forged);
            let verdict = forged.verify(market(1), buyer().address());
            assert_eq!(verdict.is_ok(), forged == good, "{name}");
        }
        let other = good.verify(market(2), buyer().address());
        assert_eq!(other, Err(VerifyError::WrongMarket));
        let moved = Invitation { market: market(2), ..good };
        assert!(moved.verify(market(2), buyer().address()).is_err(), "the domain names the market");
    }
}

#[test]
fn the_text_form_is_read_back_and_damage_is_refused() {
    for account in [None, Some(Address([5; 20]))] {
        let invitation = invitation(account);
        let text = invitation.to_string();
        assert_eq!(format!(" {text}\n").parse::<Invitation>().unwrap(), invitation);
        let incomplete = &text[..text.len() - 2];
        assert!(matches!(incomplete.parse::<Invitation>(), Err(InvitationTextError::Damaged(_))));
        let long = format!("{text}{}", "00".repeat(INVITATION_BYTES_MAX));
        for wrong in [&text[1..], &text[..text.len() - 1], "", "0x00", long.as_str()] {
            let read = wrong.parse::<Invitation>();
            assert!(matches!(read, Err(InvitationTextError::NotAnInvitation)), "{wrong}");
        }
    }
}

#[test]
fn an_allow_list_admits_only_its_accounts() {
    let accounts = [1, 3].map(|n| Address([n; 20])).to_vec();
    let listed = Admission::AllowList { accounts };
    for (admission, admitted) in [
        (Admission::Open, [true, true, true]),
        (listed, [true, false, true]),
        (Admission::Invitation, [false, false, false]),
    ] {
        assert_eq!([1, 2, 3].map(|n| admission.admits(Address([n; 20]))), admitted);
    }
}
