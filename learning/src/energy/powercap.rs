//! The counters of processors in Linux's powercap tree.
//!
//! `intel-rapl:0` is a package, or the whole platform (`psys`), and `intel-rapl:0:0` a part of it. Packages
//! count; their parts are in them, and the platform has the packages in it.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::{EnergyCounter, EnergyError};

/// The name of a domain before its number.
const PREFIX: &str = "intel-rapl:";
/// Domains of a machine, at most.
const DOMAINS_MAX: usize = 256;
const MICROJOULES: f64 = 1e6;

/// The counters of all packages of processors.
pub(super) struct Packages {
    packages: Vec<Package>,
    kind: PowercapKind,
}

/// The domains that count.
#[derive(Clone, Copy)]
enum PowercapKind {
    Packages,
    /// With its processors, memory and screen.
    Platform,
}

/// A counter that begins again after its largest number.
struct Package {
    file: PathBuf,
    /// Microjoules at which it begins again.
    range: u64,
    last: u64,
    /// Microjoules since it was opened.
    sum: u64,
}

impl Packages {
    /// # Errors
    /// [`EnergyError`] if no package is there, or if one cannot be read.
    pub(super) fn open(folder: &Path) -> Result<Self, EnergyError> {
        let none = || EnergyError::None { place: folder.display().to_string() };
        let entries = fs::read_dir(folder).map_err(|_| none())?;
        let mut domains: Vec<PathBuf> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| is_domain(path))
            .take(DOMAINS_MAX)
            .collect();
        domains.sort();
        let names = domains.iter().map(|domain| text(&domain.join("name")));
        let names = names.collect::<Result<Vec<String>, EnergyError>>()?;
        let of = |prefix: &str| {
            let own = domains.iter().zip(&names).filter(|(_, name)| name.starts_with(prefix));
            own.map(|(domain, _)| domain.as_path()).collect::<Vec<&Path>>()
        };
        let (kind, chosen) = match of("package") {
            // A laptop may have the platform alone.
            packages if packages.is_empty() => (PowercapKind::Platform, of("psys")),
            packages => (PowercapKind::Packages, packages),
        };
        if chosen.is_empty() {
            return Err(none());
        }
        let packages = chosen.into_iter().map(Package::open).collect::<Result<_, _>>()?;
        Ok(Self { packages, kind })
    }
}

impl EnergyCounter for Packages {
    fn name(&self) -> String {
        match self.kind {
            PowercapKind::Platform => "RAPL of the platform".to_owned(),
            PowercapKind::Packages => match self.packages.len() {
                1 => "RAPL of the processor".to_owned(),
                count => format!("RAPL of {count} processors"),
            },
        }
    }

    fn joules(&mut self) -> Result<f64, EnergyError> {
        let mut sum = 0.0;
        for package in &mut self.packages {
            sum += package.microjoules()? as f64 / MICROJOULES;
        }
        Ok(sum)
    }
}

impl Package {
    fn open(domain: &Path) -> Result<Self, EnergyError> {
        let file = domain.join("energy_uj");
        let range = number(&domain.join("max_energy_range_uj"))?;
        Ok(Self { last: number(&file)?, file, range, sum: 0 })
    }

    /// Microjoules since it was opened.
    fn microjoules(&mut self) -> Result<u64, EnergyError> {
        let now = number(&self.file)?;
        let more = match now.checked_sub(self.last) {
            Some(more) => more,
            None => self.range.saturating_sub(self.last).saturating_add(now),
        };
        (self.last, self.sum) = (now, self.sum.saturating_add(more));
        Ok(self.sum)
    }
}

/// Whether a path is a domain, and no part of one.
fn is_domain(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let number = name.and_then(|name| name.strip_prefix(PREFIX));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

fn text(file: &Path) -> Result<String, EnergyError> {
    let place = file.display().to_string();
    match fs::read_to_string(file) {
        Ok(text) => Ok(text.trim().to_owned()),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            Err(EnergyError::NoPermission { file: place })
        }
        Err(error) => Err(EnergyError::Failed { place, why: error.to_string() }),
    }
}

fn number(file: &Path) -> Result<u64, EnergyError> {
    let text = text(file)?;
    text.parse().map_err(|_| EnergyError::Failed {
        place: file.display().to_string(),
        why: format!("{text:?} is not a number"),
    })
}

#[cfg(test)]
mod tests {
    use super::super::EnergyMeter;
    use super::*;

    /// Writes a domain with a counter of this range.
    fn domain(folder: &Path, domain: &str, name: &str, microjoules: u64) {
        let domain = folder.join(domain);
        fs::create_dir_all(&domain).unwrap();
        fs::write(domain.join("name"), format!("{name}\n")).unwrap();
        fs::write(domain.join("max_energy_range_uj"), "10000000\n").unwrap();
        set(&domain, microjoules);
    }

    fn set(domain: &Path, microjoules: u64) {
        fs::write(domain.join("energy_uj"), format!("{microjoules}\n")).unwrap();
    }

    #[test]
    fn packages_count_and_their_parts_and_the_platform_do_not() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("intel-rapl")).unwrap();
        for (place, name) in [
            ("intel-rapl:0", "package-0"),
            ("intel-rapl:0:0", "core"),
            ("intel-rapl:1", "package-1"),
            ("intel-rapl:2", "psys"),
            ("intel-rapl-mmio:0", "package-0"),
        ] {
            domain(folder.path(), place, name, 1_000_000);
        }
        let mut meter = EnergyMeter::from_powercap(folder.path()).unwrap();
        assert_eq!(meter.source(), "RAPL of 2 processors");
        assert_eq!(meter.joules(), Ok(0.0));
        set(&at("intel-rapl:0"), 3_000_000);
        set(&at("intel-rapl:1"), 1_500_000);
        for other in ["intel-rapl:0:0", "intel-rapl:2", "intel-rapl-mmio:0"] {
            set(&at(other), 9_000_000);
        }
        assert_eq!(meter.joules(), Ok(2.5));
    }

    #[test]
    fn a_counter_begins_again_after_its_range() {
        let folder = tempfile::tempdir().unwrap();
        domain(folder.path(), "intel-rapl:0", "package-0", 9_000_000);
        let mut meter = EnergyMeter::from_powercap(folder.path()).unwrap();
        for (microjoules, joules) in
            [(9_500_000, 0.5), (500_000, 1.5), (500_000, 1.5), (400_000, 11.4)]
        {
            set(&folder.path().join("intel-rapl:0"), microjoules);
            assert_eq!(meter.joules(), Ok(joules));
        }
    }

    #[test]
    fn a_platform_alone_counts() {
        let folder = tempfile::tempdir().unwrap();
        domain(folder.path(), "intel-rapl:0", "psys", 0);
        let meter = EnergyMeter::from_powercap(folder.path()).unwrap();
        assert_eq!(meter.source(), "RAPL of the platform");
    }

    #[test]
    fn machines_without_a_readable_counter_state_why() {
        let folder = tempfile::tempdir().unwrap();
        let why = || EnergyMeter::from_powercap(folder.path()).err().unwrap().to_string();
        assert!(why().contains("has none"), "{}", why());
        let missing = EnergyMeter::from_powercap(&folder.path().join("powercap"));
        assert!(matches!(missing.err(), Some(EnergyError::None { .. })));
        domain(folder.path(), "intel-rapl:0", "package-0", 1);
        let counter = folder.path().join("intel-rapl:0/energy_uj");
        fs::write(&counter, "many\n").unwrap();
        assert!(why().contains("\"many\" is not a number"), "{}", why());
        fs::remove_file(&counter).unwrap();
        assert!(matches!(
            EnergyMeter::from_powercap(folder.path()).err(),
            Some(EnergyError::Failed { .. })
        ));
        // Root reads every file: the kind of the error decides.
        let error = EnergyError::NoPermission { file: counter.display().to_string() };
        assert!(error.to_string().contains("run the measurement as root"), "{error}");
    }

    #[test]
    fn a_counter_that_its_owner_alone_reads_names_root() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        domain(folder.path(), "intel-rapl:0", "package-0", 1);
        let counter = folder.path().join("intel-rapl:0/energy_uj");
        fs::set_permissions(&counter, fs::Permissions::from_mode(0o000)).unwrap();
        // Root may read it anyway.
        let is_root = fs::read(&counter).is_ok();
        let opened = EnergyMeter::from_powercap(folder.path());
        let is_refused = matches!(opened.err(), Some(EnergyError::NoPermission { .. }));
        assert_eq!(is_refused, !is_root);
    }
}
