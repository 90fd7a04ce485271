//! Launches of the kernels in `route.cu`.

use super::{Route, Scoring};
use crate::abi::DeviceType;
use crate::cuda::{Call, Grid, Launches, Parameter, Source};
use crate::error::Result;
use crate::ops::DeviceOp;

impl DeviceOp for Route {
    fn launch(&self, launches: &mut Launches) -> Result<()> {
        let (partitions, chosen) = (self.logits.width, self.out.width / 2);
        let router = &self.router;
        let scoring = router.scoring as usize;
        let (groups, chosen_groups) = router.groups.map_or((1, 1), |g| (g.count, g.top_k));
        let normalize = router.normalize.is_some();
        let warps = 4;
        launches.push(Call {
            source: const { &[Source::new("ops/route/route.cu", &[Scoring::define])] },
            kernel: format!(
                "route<{partitions}, {chosen}, {scoring}, {normalize}, {groups}, {chosen_groups}>"
            ),
            grid: Grid::EachTile(1, warps),
            threads: 32 * warps,
            shared: 0,
            parameters: vec![
                launches.view(self.logits),
                Parameter::pointer(
                    "const float",
                    launches.optional_address(self.bias.as_ref())?,
                ),
                Parameter::pointer(
                    "const float",
                    launches.optional_address(self.gains.as_ref())?,
                ),
                Parameter::value(router.softcap.unwrap_or(0.0)),
                Parameter::value(router.normalize.unwrap_or(0.0)),
                Parameter::value(router.scale),
                launches.view(self.out),
                Parameter::tokens(),
            ],
        });
        let [logits, out] = [self.logits, self.out].map(|view| launches.rows(view).bytes());
        launches.narrow_accesses(&[], &[logits, out]);
        Ok(())
    }
}
