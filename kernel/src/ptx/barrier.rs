//! Barriers among warps of a block and among blocks of a cluster
//! ("bar", "barrier.cluster").

/// Waits until every thread of the block is here, and orders their memory accesses in the block.
///
/// # Safety
/// Every thread of the block reaches the same call.
#[macro_export]
macro_rules! block_sync {
    () => {{
        $crate::pin!();
        ::core::arch::asm!(
            concat!("bar.sync 0;", $crate::collective_tag!()),
            options(nostack)
        )
    }};
}

/// Waits until `threads` threads have reached barrier `id` (1 to 15; 0 is [`block_sync!`](crate::block_sync)).
///
/// # Safety
/// Whole warps arrive, `threads` (a multiple of 32) of them in all, each at a barrier of the same id and count.
#[macro_export]
macro_rules! named_sync {
    ($id:expr, $threads:expr $(, $index:literal)*) => {{
        $crate::pin!();
        ::core::arch::asm!(concat!("bar.sync {0}, {1};", $crate::collective_tag!($($index)*)),
            in(reg32) $id, in(reg32) $threads, options(nostack))
    }};
}

/// Waits until all lanes of the warp are here, and orders their memory accesses ("bar.warp.sync").
///
/// # Safety
/// All 32 lanes reach the same call.
#[macro_export]
macro_rules! warp_sync {
    ($($index:literal),*) => {{
        $crate::pin!();
        ::core::arch::asm!(
            concat!("bar.warp.sync 0xffffffff;", $crate::collective_tag!($($index)*)),
            options(nostack)
        )
    }};
}

/// Arrives at the cluster barrier with release semantics at cluster scope.
///
/// # Safety
/// All threads of all blocks of the cluster arrive, then wait, in turn.
#[macro_export]
macro_rules! cluster_arrive {
    ($($index:literal)*) => {{
        $crate::pin!();
        ::core::arch::asm!(
            concat!(
                "barrier.cluster.arrive.release.aligned;",
                $crate::collective_tag!($($index)*)
            ),
            options(nostack)
        )
    }};
}

/// Waits at the cluster barrier with acquire semantics at cluster scope.
///
/// # Safety
/// Follows this thread's [`cluster_arrive!`](crate::cluster_arrive).
#[macro_export]
macro_rules! cluster_wait {
    ($($index:literal)*) => {{
        $crate::pin!();
        ::core::arch::asm!(
            concat!(
                "barrier.cluster.wait.acquire.aligned;",
                $crate::collective_tag!($($index)*)
            ),
            options(nostack)
        )
    }};
}
