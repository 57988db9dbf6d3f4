//! Slurm, whose jobs compute leases in a test: the system's, or Debian's packages unpacked in the checkout.

use crate::debian::DebianProgram;

/// Controller, daemon and commands, with the libraries that a small system lacks. The test starts them by hand.
pub(crate) const SLURM: DebianProgram = DebianProgram {
    name: "slurm",
    program: "slurmctld-wlm",
    unpacked: "usr/sbin/slurmctld-wlm",
    packages: &[
        "slurmctld",
        "slurmd",
        "slurm-client",
        "slurm-wlm-basic-plugins",
        "munge",
        "libmunge2",
        "libhwloc15",
        "liblua5.1-0",
    ],
    advice: "install the packages slurmctld, slurmd, slurm-client and munge to run the test of Slurm",
};
