"""Reads the devices of this host by NVML or DCGM, one command per line of standard input."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from datetime import timedelta

from collectors.accelerators.dcgm import Dcgm
from collectors.accelerators.exposition import AgentInfo, exposition_page
from collectors.accelerators.nvml import Nvml
from collectors.accelerators.snapshot import AcceleratorsUnavailableError, XidLedger
from outrider.clock import SystemClock


def main() -> None:
    clock = SystemClock()
    reader, ledger = Dcgm(clock) if sys.argv[1:] == ["dcgm"] else Nvml(clock), XidLedger()
    for line in sys.stdin:
        answer: dict = {}
        try:
            if line.strip() == "wait":
                xids = reader.wait(timedelta(milliseconds=20))
                for xid in xids or ():
                    ledger.add(xid)
                answer["xids"] = None if xids is None else [{**asdict(xid), "at": xid.at.timestamp()} for xid in xids]
            elif line.strip() == "page":
                answer["page"] = exposition_page(
                    reader.read(), ledger, AgentInfo("node-1", reader.name, "0", 0.0), SystemClock().now()
                )
            else:
                answer = asdict(reader.read())
        except AcceleratorsUnavailableError as error:
            answer = {"error": error.message, "hint": error.hint}
        sys.stdout.write(f"{json.dumps(answer)}\n")
        sys.stdout.flush()
    reader.close()


if __name__ == "__main__":
    main()
