//! Gauss–Legendre quadrature on the unit interval.
//!
//! The numbers are tabulated rather than computed, so that two machines agree on every bit even if
//! their `cos` differs.

/// Largest number of nodes that a caller may request, except 12.
pub const MAX_NODES: usize = 8;

/// Pairs `(node, weight)` on `0..=1`, ascending, for 1 to [`MAX_NODES`] nodes; K nodes integrate
/// polynomials of degree `2K − 1` exactly. Each number is the `f64` nearest to the true one.
const RULES: [&[(f64, f64)]; MAX_NODES] = [
    &[(0.5, 1.0)],
    &[(0.2113248654051871, 0.5), (0.7886751345948129, 0.5)],
    &[
        (0.11270166537925831, 0.2777777777777778),
        (0.5, 0.4444444444444444),
        (0.8872983346207417, 0.2777777777777778),
    ],
    &[
        (0.06943184420297371, 0.17392742256872692),
        (0.33000947820757187, 0.32607257743127305),
        (0.6699905217924281, 0.32607257743127305),
        (0.9305681557970263, 0.17392742256872692),
    ],
    &[
        (0.046910077030668004, 0.11846344252809454),
        (0.23076534494715845, 0.23931433524968324),
        (0.5, 0.28444444444444444),
        (0.7692346550528415, 0.23931433524968324),
        (0.953089922969332, 0.11846344252809454),
    ],
    &[
        (0.03376524289842399, 0.08566224618958518),
        (0.16939530676686773, 0.1803807865240693),
        (0.38069040695840156, 0.23395696728634552),
        (0.6193095930415985, 0.23395696728634552),
        (0.8306046932331322, 0.1803807865240693),
        (0.966234757101576, 0.08566224618958518),
    ],
    &[
        (0.025446043828620736, 0.06474248308443485),
        (0.12923440720030277, 0.13985269574463832),
        (0.2970774243113014, 0.19091502525255946),
        (0.5, 0.2089795918367347),
        (0.7029225756886985, 0.19091502525255946),
        (0.8707655927996972, 0.13985269574463832),
        (0.9745539561713793, 0.06474248308443485),
    ],
    &[
        (0.019855071751231884, 0.05061426814518813),
        (0.10166676129318664, 0.11119051722668724),
        (0.2372337950418355, 0.15685332293894363),
        (0.4082826787521751, 0.181341891689181),
        (0.591717321247825, 0.181341891689181),
        (0.7627662049581645, 0.15685332293894363),
        (0.8983332387068134, 0.11119051722668724),
        (0.9801449282487681, 0.05061426814518813),
    ],
];

/// The rule with twelve nodes, for a path that fewer nodes do not resolve.
const TWELVE_NODES: [(f64, f64); 12] = [
    (0.009219682876640375, 0.023587668193255914),
    (0.04794137181476257, 0.05346966299765921),
    (0.11504866290284765, 0.08003916427167311),
    (0.2063410228566913, 0.10158371336153296),
    (0.3160842505009099, 0.1167462682691774),
    (0.43738329574426554, 0.12457352290670139),
    (0.5626167042557345, 0.12457352290670139),
    (0.6839157494990901, 0.1167462682691774),
    (0.7936589771433087, 0.10158371336153296),
    (0.8849513370971523, 0.08003916427167311),
    (0.9520586281852375, 0.05346966299765921),
    (0.9907803171233597, 0.023587668193255914),
];

/// The rule with `nodes` nodes; `None` outside `1..=MAX_NODES` and 12.
pub(crate) fn gauss_legendre(nodes: usize) -> Option<&'static [(f64, f64)]> {
    if nodes == TWELVE_NODES.len() {
        return Some(&TWELVE_NODES);
    }
    RULES.get(nodes.checked_sub(1)?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k_nodes_integrate_monomials_exactly_up_to_degree_2k_minus_1() {
        for nodes in (1..=MAX_NODES).chain([12]) {
            let rule = gauss_legendre(nodes).unwrap();
            assert_eq!(rule.len(), nodes);
            let integral =
                |degree: i32| rule.iter().map(|(t, weight)| weight * t.powi(degree)).sum::<f64>();
            for degree in 0..i32::try_from(2 * nodes).unwrap() {
                let exact = 1.0 / f64::from(degree + 1);
                assert!((integral(degree) - exact).abs() < 4e-16, "{nodes} nodes, t^{degree}");
            }
            let beyond = i32::try_from(2 * nodes).unwrap();
            // The error of twelve nodes is below the rounding.
            let least = if nodes > MAX_NODES { 0.0 } else { 1e-11 };
            assert!((integral(beyond) - 1.0 / f64::from(beyond + 1)).abs() >= least);
        }
    }

    #[test]
    fn there_is_no_rule_of_zero_nodes_nor_beyond_the_limit() {
        assert!(gauss_legendre(0).is_none());
        assert!(gauss_legendre(MAX_NODES + 1).is_none());
    }
}
