use super::*;

/// The smallest file that passes: a header, one program header, two sections.
fn cubin() -> Vec<u8> {
    let mut bytes = vec![0; 64 + 56 + 2 * 64 + 16];
    bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
    let mut put = |at: usize, value: u64, size: usize| {
        bytes[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
    };
    put(18, 190, 2);
    put(32, 64, 8);
    put(54, 56, 2);
    put(56, 1, 2);
    put(40, 120, 8);
    put(58, 64, 2);
    put(60, 2, 2);
    let (first, second) = (120, 184);
    put(first + 24, 248, 8);
    put(first + 32, 16, 8);
    // No bits in the file: its size doesn't count.
    put(second + 4, 8, 4);
    put(second + 32, 1 << 20, 8);
    bytes
}

fn changed(at: usize, value: u64, size: usize) -> Vec<u8> {
    let mut bytes = cubin();
    bytes[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
    bytes
}

#[test]
fn headers_that_reach_past_the_end_are_refused() {
    check_cubin(&cubin()).unwrap();
    let bad = [
        ("empty", Vec::new()),
        ("a header cut short", cubin()[..63].to_vec()),
        ("cut short", cubin()[..cubin().len() - 1].to_vec()),
        ("another format", changed(0, 0, 4)),
        ("another machine", changed(18, 62, 2)),
        ("a section table past the end", changed(40, u64::MAX - 7, 8)),
        ("too many sections", changed(60, 3, 2)),
        ("a section past the end", changed(120 + 32, 17, 8)),
        ("a section that overflows", changed(120 + 24, u64::MAX, 8)),
        ("program headers past the end", changed(32, 1 << 40, 8)),
        ("a segment past the end", changed(64 + 32, 1 << 30, 8)),
    ];
    for (what, bytes) in bad {
        assert!(
            matches!(check_cubin(&bytes), Err(Error::BadCubin { .. })),
            "{what}"
        );
    }
}
