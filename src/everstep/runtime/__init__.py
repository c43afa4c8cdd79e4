"""What every layer rests on: both faces of a call, its deadline, forks, interrupts, arguments."""
