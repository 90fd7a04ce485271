//! Detection of the vector instructions of this CPU.

/// A level of vector instructions for which kernels exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Simd {
    /// Plain loops: the reference that the other levels are tested against.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// x86-64 with 256-bit VNNI (Alder Lake and later), in addition to [`Simd::Avx2`].
    AvxVnni,
    /// x86-64 with AVX-512 F, BW, DQ, VL and VNNI (Cascade Lake, Zen 4 and later), in addition to [`Simd::Avx2`].
    Avx512Vnni,
    /// x86-64 with AMX for 8-bit codes (Sapphire Rapids and later) under Linux, in addition to [`Simd::Avx512Vnni`].
    Amx,
    /// 64-bit ARM without the `dotprod` extension.
    Neon,
    /// 64-bit ARM with the `dotprod` extension (8-bit dot products in hardware).
    NeonDotprod,
    /// 64-bit ARM with the `i8mm` extension too (8-bit matrix multiplication in hardware).
    NeonI8mm,
}

impl Simd {
    const ALL: [Simd; 8] = [
        Simd::Scalar,
        Simd::Avx2,
        Simd::AvxVnni,
        Simd::Avx512Vnni,
        Simd::Amx,
        Simd::Neon,
        Simd::NeonDotprod,
        Simd::NeonI8mm,
    ];

    /// Returns the fastest level that this CPU has.
    pub fn detect() -> Simd {
        Simd::ALL
            .into_iter()
            .rfind(|simd| simd.is_available())
            .unwrap_or(Simd::Scalar)
    }

    /// Returns every level that this CPU has, slowest first.
    pub fn available() -> impl Iterator<Item = Simd> {
        Simd::ALL.into_iter().filter(|simd| simd.is_available())
    }

    /// Minimum prefetch distance ahead of a one-token tile, in bytes; by default the size of one tile.
    ///
    /// A tile of short rows is done before memory has answered. On a Xeon (AMX), rows of 512 columns in Q4_0 reach 11.5 of 19.6 GB/s with
    /// one tile (2.3 KB) and 17.4 with 8 KiB. On a Zen 5, rows of 2048 columns reach 28 and 35 of 43. A Zen 4 gains nothing.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn least_ahead(self) -> usize {
        match self {
            Simd::Amx | Simd::Avx512Vnni => 8 << 10,
            _ => 0,
        }
    }

    /// Whether long rows of weights are read one at a time, in memory order, instead of several at once. With this, a Zen 5 reads Q8_0 at
    /// 40 of 43 GB/s instead of 34; a Xeon (AMX) loses 3 %.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn reads_rows_one_by_one(self) -> bool {
        self != Simd::Amx
    }

    /// Whether this CPU has the level.
    pub(crate) fn is_available(self) -> bool {
        match self {
            Simd::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Simd::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Simd::AvxVnni => Simd::Avx2.is_available() && is_x86_feature_detected!("avxvnni"),
            #[cfg(target_arch = "x86_64")]
            Simd::Amx => Simd::Avx512Vnni.is_available() && crate::simd::amx::is_available(),
            #[cfg(target_arch = "x86_64")]
            Simd::Avx512Vnni => {
                Simd::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(target_arch = "aarch64")]
            Simd::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            #[cfg(target_arch = "aarch64")]
            Simd::NeonDotprod => {
                Simd::Neon.is_available() && std::arch::is_aarch64_feature_detected!("dotprod")
            }
            #[cfg(target_arch = "aarch64")]
            Simd::NeonI8mm => {
                Simd::NeonDotprod.is_available() && std::arch::is_aarch64_feature_detected!("i8mm")
            }
            #[allow(unreachable_patterns)]
            _ => false,
        }
    }
}
