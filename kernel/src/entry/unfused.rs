//! The layer in separate launches: a role an entry.

use crate::role::{peers, rows, schedule};
use crate::unfused::{
    AbortArgs, MoveArgs, PermuteArgs, PublishArgs, ScheduleArgs, SignalArgs, SwigluArgs, WeighArgs,
};

macro_rules! entries {
    ($($(#[$doc:meta])* $name:ident($args:ty) = $role:path;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// Launched as its spec says; `args` describes live memory.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $name(args: $args) {
            // SAFETY: the caller's contract.
            unsafe { $role(&args) };
        }
    )*};
}

entries! {
    /// This rank's choice of experts, to every rank.
    mok_publish(PublishArgs) = schedule::publish;
    /// All ranks have come this far.
    mok_signal(SignalArgs) = peers::signal;
    /// This rank gives up.
    mok_abort(AbortArgs) = peers::abort;
    /// Routes of each chunk and expert.
    mok_count(ScheduleArgs) = schedule::count;
    /// Sizes of the groups, and the first row of each chunk and expert.
    mok_place(ScheduleArgs) = schedule::place;
    /// The route of each row.
    mok_scatter(ScheduleArgs) = schedule::scatter;
    /// Tokens of all ranks into rows.
    mok_dispatch(MoveArgs) = rows::dispatch;
    /// Rows into the slots of their routes.
    mok_combine(MoveArgs) = rows::combine;
    /// Rows into another order.
    mok_permute(PermuteArgs) = rows::permute;
    /// The activation.
    mok_swiglu(SwigluArgs) = rows::swiglu;
    /// The weighted sum of each token's slots.
    mok_weigh(WeighArgs) = rows::weigh;
}
