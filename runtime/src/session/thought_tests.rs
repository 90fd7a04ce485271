use super::*;

#[test]
fn a_text_is_found_where_it_ends() {
    for (stream, ends) in [
        ("aab", vec![3]),
        ("aaab", vec![4]),
        ("ababaab", vec![7]),
        ("aaaa", vec![]),
        ("aabaab", vec![3, 6]),
    ] {
        let mut search = Search::new(b"aab");
        let found = stream.bytes().enumerate();
        let found: Vec<usize> = found
            .filter_map(|(index, byte)| search.is_found_with(byte).then_some(index + 1))
            .collect();
        assert_eq!(found, ends, "{stream}");
    }
}
