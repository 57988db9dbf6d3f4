//! The place of a process among its ranks, from the environment that a launcher sets.

use thiserror::Error;

/// Most ranks of a training.
pub const RANKS_MAX: u32 = 1_024;
/// First port for a rendezvous that no launcher names.
const PORT_FIRST: u16 = 20_000;
/// Number of ports for it.
const PORTS: u32 = 20_000;
/// Longest host name.
const HOST_CHARS_MAX: usize = 255;

/// The place of a process among the ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankPlace {
    /// The rank, from 0.
    pub rank: u32,
    /// Number of ranks, at least 2.
    pub size: u32,
    /// The rank among those of its machine, from 0.
    pub local: u32,
    /// Host of the store of the rendezvous.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Whether the store runs in this process.
    pub serves: bool,
    /// A text that each start of the same ranks has for itself.
    pub attempt: String,
}

/// The environment of a launcher is incomplete.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum PlaceError {
    /// A variable that belongs to another one is missing.
    #[error(
        "the environment has {has} but not {lacks}: start all ranks by torchrun, srun or mpirun"
    )]
    Missing {
        /// The variable that is there.
        has: &'static str,
        /// The one that is missing.
        lacks: &'static str,
    },
    /// A variable is not a number in its range.
    #[error("{name} is {value:?}: must be {bounds}")]
    Invalid {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// The valid values.
        bounds: String,
    },
    /// Ranks on several machines do not know where to meet.
    #[error(
        "{launcher} started ranks on several machines: set MASTER_ADDR to the host of rank 0 and \
         MASTER_PORT to a free port there, the same for all ranks"
    )]
    NoAddress {
        /// The launcher.
        launcher: &'static str,
    },
}

/// A launcher, and its variables.
struct Launcher {
    name: &'static str,
    rank: &'static str,
    size: &'static str,
    /// The rank on this machine.
    local_rank: &'static str,
    /// A variable without which the others do not count.
    requires: Option<&'static str>,
    /// The number of ranks on this machine, or of machines.
    local: Local,
    /// The name of the job.
    job: &'static str,
}

enum Local {
    /// Addresses are always given.
    Given,
    /// Number of ranks on this machine.
    Ranks(&'static str),
    /// Number of machines.
    Machines(&'static str),
}

const LAUNCHERS: [Launcher; 4] = [
    Launcher {
        name: "torchrun",
        rank: "RANK",
        size: "WORLD_SIZE",
        local_rank: "LOCAL_RANK",
        requires: None,
        local: Local::Given,
        job: "TORCHELASTIC_RUN_ID",
    },
    Launcher {
        name: "mpirun",
        rank: "OMPI_COMM_WORLD_RANK",
        size: "OMPI_COMM_WORLD_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        requires: None,
        local: Local::Ranks("OMPI_COMM_WORLD_LOCAL_SIZE"),
        job: "PMIX_NAMESPACE",
    },
    Launcher {
        name: "srun",
        rank: "SLURM_PROCID",
        size: "SLURM_STEP_NUM_TASKS",
        local_rank: "SLURM_LOCALID",
        // A batch script has the first one without a step of its own.
        requires: Some("SLURM_STEP_ID"),
        local: Local::Machines("SLURM_STEP_NUM_NODES"),
        job: "SLURM_JOB_ID",
    },
    Launcher {
        name: "mpirun",
        rank: "PMI_RANK",
        size: "PMI_SIZE",
        local_rank: "MPI_LOCALRANKID",
        requires: None,
        local: Local::Ranks("MPI_LOCALNRANKS"),
        job: "PMI_ID",
    },
];

impl RankPlace {
    /// The place that the environment states; `None` for a process that is alone.
    ///
    /// # Errors
    /// [`PlaceError`] if variables are missing or out of bounds.
    pub fn from_environment(
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, PlaceError> {
        let is_set = |name: &str| variable(name).is_some();
        let found = LAUNCHERS.iter().find(|launcher| {
            let counts = launcher.requires.is_none_or(is_set);
            counts && (is_set(launcher.rank) || is_set(launcher.size))
        });
        match found {
            None => Ok(None),
            Some(launcher) => launcher.place(&variable),
        }
    }
}

impl Launcher {
    fn place(
        &self,
        variable: &impl Fn(&str) -> Option<String>,
    ) -> Result<Option<RankPlace>, PlaceError> {
        let number = |name: &'static str, of: &'static str, least: u32, most: u32| {
            let value = variable(name).ok_or(PlaceError::Missing { has: of, lacks: name })?;
            let parsed = value.trim().parse().ok().filter(|number| (least..=most).contains(number));
            let bounds = || format!("{least} to {most}");
            parsed.ok_or_else(|| PlaceError::Invalid { name, value, bounds: bounds() })
        };
        let size = number(self.size, self.rank, 1, RANKS_MAX)?;
        let rank = number(self.rank, self.size, 0, size - 1)?;
        if size == 1 {
            return Ok(None);
        }
        let is_local = match self.local {
            Local::Given => false,
            Local::Ranks(name) => variable(name).is_some_and(|ranks| ranks == size.to_string()),
            Local::Machines(name) => variable(name).is_none_or(|machines| machines == "1"),
        };
        let host = match variable("MASTER_ADDR") {
            Some(host) if host.chars().count() > HOST_CHARS_MAX || host.is_empty() => {
                let bounds = "a host name or an address".to_owned();
                return Err(PlaceError::Invalid { name: "MASTER_ADDR", value: host, bounds });
            }
            Some(host) => host,
            None if is_local => "127.0.0.1".to_owned(),
            None => match self.local {
                Local::Given => {
                    return Err(PlaceError::Missing { has: self.rank, lacks: "MASTER_ADDR" });
                }
                _ => return Err(PlaceError::NoAddress { launcher: self.name }),
            },
        };
        let step = variable("SLURM_STEP_ID").unwrap_or_default();
        let job = format!("{}.{step}", variable(self.job).unwrap_or_default());
        let port = match variable("MASTER_PORT") {
            Some(_) => number("MASTER_PORT", "MASTER_ADDR", 1, u16::MAX.into())? as u16,
            None if is_local => port_of(&job),
            None => return Err(PlaceError::Missing { has: self.rank, lacks: "MASTER_PORT" }),
        };
        let agent = variable("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|value| value == "True");
        let restart = variable("TORCHELASTIC_RESTART_COUNT").unwrap_or_default();
        let local = variable(self.local_rank).and_then(|local| local.parse().ok()).unwrap_or(0);
        Ok(Some(RankPlace {
            rank,
            size,
            local,
            host,
            port,
            serves: rank == 0 && !agent,
            attempt: format!("{job}.{restart}"),
        }))
    }
}

/// A port that jobs on one machine are unlikely to share.
fn port_of(job: &str) -> u16 {
    let digest = blake3::hash(job.as_bytes());
    let [a, b, c, d, ..] = *digest.as_bytes();
    PORT_FIRST + (u32::from_le_bytes([a, b, c, d]) % PORTS) as u16
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn place(variables: &[(&str, &str)]) -> Result<Option<RankPlace>, PlaceError> {
        let variables: BTreeMap<&str, &str> = variables.iter().copied().collect();
        RankPlace::from_environment(|name| variables.get(name).map(|&value| value.to_owned()))
    }

    #[test]
    fn each_launcher_states_a_place() {
        assert_eq!(place(&[]), Ok(None));
        assert_eq!(place(&[("RANK", "0"), ("WORLD_SIZE", "1")]), Ok(None), "alone");
        let torchrun = place(&[
            ("RANK", "0"),
            ("WORLD_SIZE", "4"),
            ("MASTER_ADDR", "node1"),
            ("MASTER_PORT", "29500"),
            ("TORCHELASTIC_USE_AGENT_STORE", "True"),
            ("TORCHELASTIC_RESTART_COUNT", "2"),
            ("TORCHELASTIC_RUN_ID", "job"),
        ]);
        let torchrun = torchrun.unwrap().unwrap();
        assert_eq!((torchrun.rank, torchrun.size, torchrun.port), (0, 4, 29_500));
        assert!(!torchrun.serves, "the store is the launcher's");
        assert_eq!(torchrun.attempt, "job..2");
        let mpirun = [
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
            ("PMIX_NAMESPACE", "prterun-a-7@1"),
        ];
        let one = place(&mpirun).unwrap().unwrap();
        assert_eq!((one.rank, one.host.as_str(), one.serves), (1, "127.0.0.1", false));
        let first = [&[("OMPI_COMM_WORLD_RANK", "0")], &mpirun[1..]].concat();
        let first = place(&first).unwrap().unwrap();
        assert!(first.serves && first.port == one.port && first.attempt == one.attempt);
        let srun = [
            ("SLURM_STEP_ID", "3"),
            ("SLURM_PROCID", "1"),
            ("SLURM_STEP_NUM_TASKS", "2"),
            ("SLURM_STEP_NUM_NODES", "1"),
            ("SLURM_JOB_ID", "12"),
        ];
        assert_eq!(place(&srun).unwrap().unwrap().attempt, "12.3.");
        assert_eq!(place(&srun[1..]), Ok(None), "a batch script is not a step");
    }

    #[test]
    fn incomplete_environments_are_refused() {
        let message = |variables: &[(&str, &str)]| place(variables).unwrap_err().to_string();
        let text = message(&[("RANK", "1")]);
        assert!(text.contains("has RANK but not WORLD_SIZE"), "{text}");
        let text = message(&[("RANK", "2"), ("WORLD_SIZE", "2")]);
        assert!(text.contains("RANK is \"2\": must be 0 to 1"), "{text}");
        let text = message(&[("RANK", "0"), ("WORLD_SIZE", "2")]);
        assert!(text.contains("not MASTER_ADDR"), "{text}");
        let text = message(&[("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a")]);
        assert!(text.contains("not MASTER_PORT"), "{text}");
        let far = [
            ("OMPI_COMM_WORLD_RANK", "0"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ];
        assert!(message(&far).contains("set MASTER_ADDR"));
        let port = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "x")];
        assert!(message(&port).contains("MASTER_PORT is \"x\""));
    }
}
