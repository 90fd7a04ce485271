// PQ2_0: as Q2_0, in blocks of 128.
template <int cols>
struct Format<PQ2_0, cols> : WideBlocks<Q2_0Block<128>, cols> {};
