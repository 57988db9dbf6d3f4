//! IP networks in the settings: an address, or an address and a prefix length (CIDR notation).

use std::net::IpAddr;
use std::str::FromStr;

use ipnet::{IpNet, Ipv6Net};
use serde::Deserialize;

/// An IP network such as `10.0.0.0/8`; without a prefix length, a single address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct IpNetwork(IpNet);

/// A text that is not an IP network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a network: use an address such as 192.0.2.7, or a network such as 10.0.0.0/8"
)]
pub struct ParseIpNetworkError(String);

impl IpNetwork {
    /// Whether the network contains an address. An IPv4-mapped IPv6 address counts as the IPv4
    /// address.
    #[must_use]
    pub fn contains(self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }
}

/// The unit of rate limits and connection limits for an address: the address itself for IPv4, its
/// /64 for IPv6, because one client usually controls a whole /64.
pub(crate) fn rate_limit_address(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Net::new_assert(address, 64).network()),
    }
}

impl FromStr for IpNetwork {
    type Err = ParseIpNetworkError;

    fn from_str(text: &str) -> Result<Self, ParseIpNetworkError> {
        let bad = || ParseIpNetworkError(text.chars().take(80).collect());
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse().map_err(|_| bad())?)),
            None => (text, None),
        };
        let address = address.parse::<IpAddr>().map_err(|_| bad())?.to_canonical();
        match bits {
            Some(bits) => IpNet::new(address, bits).map(Self).map_err(|_| bad()),
            None => Ok(Self(address.into())),
        }
    }
}

impl TryFrom<String> for IpNetwork {
    type Error = ParseIpNetworkError;

    fn try_from(text: String) -> Result<Self, ParseIpNetworkError> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_network_contains_the_addresses_with_its_prefix() {
        let table = [
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.0.0.0/8", "::ffff:10.1.2.3", true),
            ("192.0.2.7", "192.0.2.7", true),
            ("192.0.2.7", "192.0.2.6", false),
            ("0.0.0.0/0", "203.0.113.9", true),
            ("0.0.0.0/0", "2001:db8::1", false),
            ("2001:db8::/64", "2001:db8::ffff:1", true),
            ("2001:db8::/64", "2001:db8:0:1::1", false),
            ("::/0", "2001:db8::1", true),
            ("::/0", "10.0.0.1", false),
        ];
        for (network, address, inside) in table {
            let known: IpNetwork = network.parse().unwrap();
            assert_eq!(known.contains(ip(address)), inside, "{address} in {network}");
        }
        for wrong in ["", "10.0.0.0/33", "10.0.0/8", "::/129", "10.0.0.0/", "10.0.0.0/-1", "host"] {
            assert!(wrong.parse::<IpNetwork>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_ipv6_address_is_limited_by_its_64_prefix() {
        assert_eq!(rate_limit_address(ip("2001:db8:1:2:3:4:5:6")), ip("2001:db8:1:2::"));
        assert_eq!(rate_limit_address(ip("::ffff:192.0.2.1")), ip("192.0.2.1"));
        assert_ne!(
            rate_limit_address(ip("2001:db8:1:2::1")),
            rate_limit_address(ip("2001:db8:1:3::1"))
        );
    }
}
