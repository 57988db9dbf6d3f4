//! The file of `florin provide --list`: TOML, in which an unknown key is an error.

use std::path::Path;

use florin_compute::{LISTING_MS_MAX, LISTING_MS_MIN, PROBE_MATRIX_BYTES, PROBE_STATES_MAX};
use florin_participant::listings::ListingOffer;
use florin_protocol::{Address, Amount, format_ms};
use serde::Deserialize;

use crate::failure::Failure;
use crate::small_file::SmallFile;
use crate::task_file::parse_ms;
use crate::toml_words::in_words;

/// The file.
const FILE: SmallFile =
    SmallFile { kind: "a listing file", code: "INVALID_LISTING", bytes_max: 1 << 20 };
/// States of a mebibyte.
const STATES_PER_MIB: u32 = (1 << 20) / PROBE_MATRIX_BYTES as u32;
/// States of a probe for each filled one: itself, and three that read it.
const STATES_OF_FILLED: u64 = 4;
/// Memory of a device that probes fill, unless the file has another one (MiB).
const MEMORY_MIB: u32 = 64;
/// Life of a listing, unless the file has another one: seven days.
const LIFE_MS: u64 = 604_800_000;
/// Challenge window, unless the file has another one: ten minutes.
const CHALLENGE_MS: u64 = 600_000;

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ListingFile {
    referee: Address,
    devices: Option<u32>,
    memory_mib: Option<u32>,
    stake: Option<Amount>,
    fees_max: Amount,
    life: Option<String>,
    challenge: Option<String>,
}

/// Reads a listing file.
///
/// # Errors
/// [`Failure`] with code `INVALID_LISTING`.
pub(in crate::commands) fn read(path: &Path) -> anyhow::Result<ListingOffer> {
    let shown = path.display();
    let text = FILE.read(path)?;
    let invalid = |why: String| Failure::input("INVALID_LISTING", format!("{shown}: {why}"));
    Ok(from_text(&text).map_err(invalid)?)
}

fn from_text(text: &str) -> Result<ListingOffer, String> {
    let file: ListingFile =
        toml::from_str(text).map_err(|error| in_words(error.to_string().trim()))?;
    let ms = |key: &str, text: Option<&str>, default: u64| match text {
        None => Ok(default),
        Some(text) => parse_ms(text).map_err(|why| format!("{key}: {why}")),
    };
    let cores = u32::try_from(florin_learning::cores()).unwrap_or(u32::MAX);
    let devices = file.devices.unwrap_or(cores.min(florin_compute::LISTED_DEVICES_MAX));
    if devices == 0 {
        return Err("devices = 0: use 1 or more".to_owned());
    }
    if devices > cores {
        return Err(format!(
            "devices = {devices}: this machine has {cores} cores, and a probe has each device work at once"
        ));
    }
    let memory = file.memory_mib.unwrap_or(MEMORY_MIB);
    let filled = memory.checked_mul(STATES_PER_MIB).filter(|filled| *filled > 0);
    let filled = filled.ok_or_else(|| format!("memory_mib = {memory}: use 1 MiB or more"))?;
    // A probe reads each filled state three times, of each device.
    let most = PROBE_STATES_MAX / STATES_OF_FILLED / u64::from(devices) / u64::from(STATES_PER_MIB);
    if u64::from(memory) > most {
        return Err(format!(
            "memory_mib = {memory}: a probe fills at most {most} MiB of each of {devices} devices"
        ));
    }
    let life_ms = ms("life", file.life.as_deref(), LIFE_MS)?;
    if !(LISTING_MS_MIN..=LISTING_MS_MAX).contains(&life_ms) {
        let (least, most) = (format_ms(LISTING_MS_MIN), format_ms(LISTING_MS_MAX));
        return Err(format!("life = {}: use {least} to {most}", format_ms(life_ms)));
    }
    Ok(ListingOffer {
        referee: file.referee,
        devices,
        filled,
        stake: file.stake,
        fees_max: file.fees_max,
        life_ms,
        challenge_ms: ms("challenge", file.challenge.as_deref(), CHALLENGE_MS)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: &str =
        "referee = \"0x0202020202020202020202020202020202020202\"\nfees_max = \"1\"\n";

    #[test]
    fn a_short_file_has_the_documented_defaults() {
        let offer = from_text(SHORT).unwrap();
        assert_eq!((offer.referee, offer.stake), (Address([2; 20]), None));
        assert_eq!(
            (offer.filled, offer.life_ms, offer.challenge_ms),
            (1_024, LIFE_MS, CHALLENGE_MS)
        );
        assert!(offer.devices >= 1);
        let all = format!(
            "{SHORT}devices = 1\nmemory_mib = 2\nstake = \"3\"\nlife = \"2 h\"\nchallenge = \"30 s\"\n"
        );
        let offer = from_text(&all).unwrap();
        assert_eq!((offer.devices, offer.filled), (1, 32));
        assert_eq!((offer.life_ms, offer.challenge_ms), (7_200_000, 30_000));
        assert_eq!(offer.stake, Some("3".parse().unwrap()));
    }

    #[test]
    fn wrong_files_say_what_to_change() {
        for (added, expected) in [
            ("devices = 100000", "cores"),
            ("devices = 0", "devices = 0: use 1 or more"),
            ("life = \"30 d\"", "life = 30 d: use 1 min to 20 d"),
            ("life = \"1 s\"", "life = 1 s: use 1 min"),
            ("devices = 1\nmemory_mib = 99999999", "a probe fills at most"),
            ("memory_mib = 0", "memory_mib = 0: use 1 MiB or more"),
            ("memory_mib = 4294967295", "use 1 MiB or more"),
            ("life = \"soon\"", "life: "),
            ("price = 1", "unknown field `price`"),
        ] {
            let error = from_text(&format!("{SHORT}{added}\n")).unwrap_err();
            assert!(error.contains(expected), "{added}: {error}");
        }
        assert!(from_text("fees_max = \"1\"").unwrap_err().contains("referee"));
    }
}
