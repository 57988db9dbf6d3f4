//! Arguments of the commands about silos, whose pay is split among members.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use florin_ledger::MemberShare;
use florin_protocol::{Address, Micro};

use super::{JsonArg, MarketArg, WalletArg};

/// `florin silo …`
#[derive(Debug, Subcommand)]
pub(crate) enum SiloCommand {
    /// Split all pay of your account in a task among members, before you take part and for good
    #[command(
        after_help = "Example:\n  florin silo split --task 3f9a1c --wallet silo.json \\\n    \
        --member 0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed=0.6 \\\n    \
        --member 0xfB6916095ca1df60bB79Ce92cE3Ea74c37c5d359=0.4\n\nEvery claim of the account's \
        pay then goes to the members. The split cannot be changed; another account may have \
        another one."
    )]
    Split(SiloSplit),
    /// Show the members of a split with what they have received, and what they can claim now
    Show(SiloShow),
    /// Pay the members of a silo what it has earned; any wallet may send it
    Claim(SiloClaim),
}

/// `florin silo split`
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("members").args(["member", "file"]).required(true))]
pub(crate) struct SiloSplit {
    /// Task id, or its first digits (6 or more)
    #[arg(long, value_name = "ID")]
    pub(crate) task: String,
    /// A member and its share, from 0.000001 to 1; the shares add up to 1. May be repeated
    #[arg(long, value_name = "ADDRESS=SHARE", value_parser = member_share)]
    pub(crate) member: Vec<MemberShare>,
    /// Read the members from this TOML file with a table `[members]` of ADDRESS = "SHARE"
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) market: MarketArg,
    #[command(flatten)]
    pub(crate) wallet: WalletArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin silo show`
#[derive(Debug, Args)]
pub(crate) struct SiloShow {
    /// Task id, or its first digits (6 or more)
    #[arg(long, value_name = "ID")]
    pub(crate) task: String,
    /// The silo's account [default: the wallet's]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) account: Option<Address>,
    #[command(flatten)]
    pub(crate) market: MarketArg,
    /// Key file of the account; it is not unlocked
    #[arg(long, value_name = "FILE", env = "FLORIN_WALLET")]
    pub(crate) wallet: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin silo claim`
#[derive(Debug, Args)]
pub(crate) struct SiloClaim {
    /// Task id, or its first digits (6 or more)
    #[arg(long, value_name = "ID")]
    pub(crate) task: String,
    /// The silo's account [default: the wallet's]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) account: Option<Address>,
    #[command(flatten)]
    pub(crate) market: MarketArg,
    #[command(flatten)]
    pub(crate) wallet: WalletArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

fn member_share(text: &str) -> Result<MemberShare, String> {
    let (member, share) = text
        .split_once('=')
        .ok_or("write ADDRESS=SHARE, such as 0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed=0.25")?;
    let member = member.trim().parse::<Address>().map_err(|error| error.to_string())?;
    let share = share.trim().parse::<Micro>().map_err(|error| error.to_string())?;
    Ok(MemberShare { member, share })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_has_an_address_and_a_share() {
        let ann = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed";
        let parsed = member_share(&format!("{ann}=0.25")).unwrap();
        assert_eq!((parsed.member.to_string().as_str(), parsed.share), (ann, Micro(250_000)));
        for wrong in ["0.25", "ann=0.25", &format!("{ann}=25 %"), &format!("{ann}=0.0000001")] {
            assert!(member_share(wrong).is_err(), "{wrong}");
        }
    }
}
