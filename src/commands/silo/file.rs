//! The file of a split: a TOML table of members and shares.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use florin_ledger::MemberShare;
use florin_ledger::split::check_split;
use florin_protocol::{Address, Micro};
use serde::Deserialize;

use crate::failure::Failure;

/// Maximum size of the file, in bytes.
const FILE_BYTES_MAX: u64 = 64 * 1024;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SplitFile {
    members: BTreeMap<String, Micro>,
}

/// Reads a split, in the order of the members' addresses.
///
/// # Errors
/// `SPLIT_INVALID`, and those of reading the file.
pub(super) fn read(path: &Path) -> anyhow::Result<Vec<MemberShare>> {
    let shown = path.display();
    let length = std::fs::metadata(path).with_context(|| shown.to_string())?.len();
    if length > FILE_BYTES_MAX {
        let message =
            format!("{shown} has {length} bytes, but a split has at most {FILE_BYTES_MAX}");
        return Err(Failure::input("SPLIT_INVALID", message).into());
    }
    let text = std::fs::read_to_string(path).with_context(|| shown.to_string())?;
    from_text(&text)
        .map_err(|what| Failure::input("SPLIT_INVALID", format!("{shown}: {what}")).into())
}

fn from_text(text: &str) -> Result<Vec<MemberShare>, String> {
    let file: SplitFile =
        toml::from_str(text).map_err(|error| error.to_string().trim().to_owned())?;
    let mut members = Vec::with_capacity(file.members.len());
    for (address, share) in &file.members {
        let member: Address = address.parse().map_err(|error| format!("members: {error}"))?;
        members.push(MemberShare { member, share: *share });
    }
    in_order(members)
}

/// The members in the order of their addresses, checked as the ledger does.
///
/// # Errors
/// The reason.
pub(super) fn in_order(mut members: Vec<MemberShare>) -> Result<Vec<MemberShare>, String> {
    members.sort_by_key(|each| each.member);
    check_split(&members).map_err(|refusal| refusal.to_string())?;
    Ok(members)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANN: &str = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed";
    const BEN: &str = "0xfB6916095ca1df60bB79Ce92cE3Ea74c37c5d359";

    #[test]
    fn a_file_lists_members_in_any_order() {
        let text = format!("[members]\n{BEN} = \"0.4\"\n{ANN} = \"0.6\"\n");
        let members = from_text(&text).unwrap();
        let shown: Vec<String> = members.iter().map(|each| each.member.to_string()).collect();
        assert_eq!(shown, [ANN, BEN]);
        assert_eq!((members[0].share, members[1].share), (Micro(600_000), Micro(400_000)));
    }

    #[test]
    fn a_file_that_is_no_split_is_refused_with_the_reason() {
        for (text, why) in [
            ("", "missing field `members`"),
            ("[members]\nann = \"1\"\n", "members:"),
            ("[members]\n", "add up to 0"),
            (&format!("[members]\n{ANN} = \"0.5\"\n"), "add up to 0.5"),
            (&format!("[members]\n{ANN} = \"1\"\n{BEN} = \"0\"\n"), "share of 0"),
            (&format!("[members]\n{ANN} = \"1\"\n[more]\n"), "unknown field"),
        ] {
            let error = from_text(text).unwrap_err();
            assert!(error.contains(why), "{text:?}: {error}");
        }
        let twice = [ANN, ANN]
            .map(|member| MemberShare { member: member.parse().unwrap(), share: Micro(500_000) });
        assert!(in_order(twice.to_vec()).unwrap_err().contains("distinct"));
    }
}
