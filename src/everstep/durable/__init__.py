"""Durable runs: functions whose steps are recorded, so that no tool is paid for twice."""
