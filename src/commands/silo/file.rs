//! The file of a split: a TOML table of members and shares.

use std::collections::BTreeMap;
use std::path::Path;

use florin_ledger::split::check_split;
use florin_ledger::{MemberShare, Refusal};
use florin_protocol::{Address, Micro};
use serde::Deserialize;

use crate::failure::Failure;
use crate::small_file::SmallFile;
use crate::toml_words::in_words;

/// The file.
const FILE: SmallFile = SmallFile { kind: "a split", code: "SPLIT_INVALID", bytes_max: 64 * 1024 };

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SplitFile {
    members: BTreeMap<String, Micro>,
}

/// A list that is not a split.
#[derive(Debug)]
pub(super) enum NotASplit {
    /// The file has no list of members.
    File(String),
    /// The ledger would refuse the list.
    Refused(Refusal),
}

impl NotASplit {
    /// The failure of a list that is written at `place`: a file or an option.
    pub(super) fn at(&self, place: &str) -> Failure {
        match self {
            Self::File(why) => Failure::input("SPLIT_INVALID", format!("{place}: {why}")),
            Self::Refused(refusal) => Failure::input(refusal.code(), format!("{place}: {refusal}")),
        }
    }
}

/// Reads a split, in the order of the members' addresses.
///
/// # Errors
/// `SPLIT_INVALID`, `LIMIT_EXCEEDED`, and those of reading the file.
pub(super) fn read(path: &Path) -> anyhow::Result<Vec<MemberShare>> {
    let text = FILE.read(path)?;
    from_text(&text).map_err(|wrong| wrong.at(&path.display().to_string()).into())
}

fn from_text(text: &str) -> Result<Vec<MemberShare>, NotASplit> {
    let file: SplitFile = toml::from_str(text)
        .map_err(|error| NotASplit::File(in_words(error.to_string().trim())))?;
    let mut members = Vec::with_capacity(file.members.len());
    for (address, share) in &file.members {
        let member: Address =
            address.parse().map_err(|error| NotASplit::File(format!("members: {error}")))?;
        members.push(MemberShare { member, share: *share });
    }
    in_order(members)
}

/// The members in the order of their addresses, checked as the ledger does.
///
/// # Errors
/// The ledger's refusal.
pub(super) fn in_order(mut members: Vec<MemberShare>) -> Result<Vec<MemberShare>, NotASplit> {
    members.sort_by_key(|each| each.member);
    check_split(&members).map_err(NotASplit::Refused)?;
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
            let error = from_text(text).unwrap_err().at("a.toml").to_string();
            assert!(error.contains(why) && error.starts_with("a.toml: "), "{text:?}: {error}");
        }
        let twice = [ANN, ANN]
            .map(|member| MemberShare { member: member.parse().unwrap(), share: Micro(500_000) });
        let twice = in_order(twice.to_vec()).unwrap_err().at("--member").to_string();
        assert!(twice.contains(ANN) && twice.contains("is listed twice"), "{twice}");
    }

    #[test]
    fn too_many_members_have_the_code_of_their_limit() {
        let member = |number: u8| format!("0x{number:02x}{}", "0".repeat(38));
        let rows = (1..=65).map(|number| format!("{} = \"0.01\"\n", member(number)));
        let text = format!("[members]\n{}", rows.collect::<String>());
        let failure = from_text(&text).unwrap_err().at("a.toml").into();
        assert_eq!(crate::failure::classify(&failure).0, "LIMIT_EXCEEDED", "{failure:#}");
    }
}
