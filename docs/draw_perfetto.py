#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""draw_perfetto.py TRACE.pftrace OUT.svg [FROM_MS [WIDTH_MS]]: the tracks of a Perfetto trace as a
picture, for the README: slices and counters of each queue pair below its process, as ui.perfetto.dev
lays them out. Reads the protobuf by its wire format (perfetto: protos/perfetto/trace/*.proto)."""
import html
import sys
from collections import defaultdict

COLOURS = {"rdma_write": "#5b8def", "send_with_imm": "#e8a33d", "recv": "#7cb87c", "rdma_read": "#b07cd8"}
LEFT, WIDTH, LINE, GAP = 190, 760, 13, 5


def fields(data):
    """(field number, value) of one message: integers, or bytes."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
    while at < len(data):
        tag = varint()
        if tag & 7 == 0:
            yield tag >> 3, varint()
        elif tag & 7 == 1:
            yield tag >> 3, int.from_bytes(data[at:at + 8], "little")
            at += 8
        else:
            assert tag & 7 == 2, tag
            size = varint()
            yield tag >> 3, data[at:at + size]
            at += size


class Trace:
    def __init__(self, data):
        self.tracks = {}  # uuid: (name, parent, is a process)
        self.slices = defaultdict(list)  # track: [begin, end, name]
        self.counts = defaultdict(list)  # track: (time, value)
        names = {}
        for _, packet in fields(data):
            packet = dict(fields(packet))
            for kind, entry in fields(packet.get(12, b"")):
                entry = dict(fields(entry))
                names[kind, entry[1]] = entry[2].decode()
            if 60 in packet:
                track = dict(fields(packet[60]))
                name = track.get(2, b"").decode()
                if 3 in track:
                    process = dict(fields(track[3]))
                    name = f"{process[6].decode()} {process[1]}"
                self.tracks[track[1]] = (name, track.get(5, 0), 3 in track)
            if 11 in packet:
                self.add(dict(fields(packet[11])), packet[8], names)

    def add(self, event, time, names):
        track = event[11]
        if event[9] == 1:
            self.slices[track].append([time, None, names[2, event[10]]])
        elif event[9] == 2:
            self.slices[track][-1][1] = time
        elif event[9] == 4:
            self.counts[track].append((time, event.get(30, 0)))

    def children(self, uuid):
        return [child for child, (_, parent, _) in self.tracks.items() if parent == uuid]


def draw(trace, begin, width):
    end = begin + width
    out, y = [], 24

    def x(time):
        return LEFT + (min(max(time, begin), end) - begin) * WIDTH / width

    def text(at, size, words, weight="normal", colour="#333"):
        out.append(f'<text x="{at}" y="{y + LINE - 3}" font-size="{size}" font-weight="{weight}" fill="{colour}">'
                   f"{html.escape(words)}</text>")
    for process in (uuid for uuid, track in trace.tracks.items() if track[2]):
        text(6, 11, trace.tracks[process][0], "bold")
        y += LINE + GAP
        for queue in trace.children(process):
            name = trace.tracks[queue][0]
            if name.endswith(" recv"):
                continue
            lanes = [lane for lane in trace.children(queue)
                     if any(s[0] < end and (s[1] or s[0]) > begin for s in trace.slices[lane])]
            counters = [c for c in trace.children(queue) if trace.counts[c]]
            if not lanes:
                continue
            for number, lane in enumerate(lanes[:3]):
                if number == 0:
                    text(18, 10, name)
                for start, stop, what in trace.slices[lane]:
                    if stop is None or stop < begin or start > end:
                        continue
                    out.append(f'<rect x="{x(start):.1f}" y="{y}" width="{max(x(stop) - x(start), .6):.1f}" height="{LINE - 2}" '
                               f'fill="{COLOURS.get(what, "#999")}"><title>{what} {(stop - start) / 1e6:.2f} ms</title></rect>')
                y += LINE
            for counter in counters:
                values = trace.counts[counter]
                most = max(value for _, value in values) or 1
                points, last = [f"{LEFT},{y + LINE}"], 0
                for time, value in values:
                    if time > end:
                        break
                    if time >= begin:
                        points += [f"{x(time):.1f},{y + LINE - last * (LINE - 3) / most:.1f}",
                                   f"{x(time):.1f},{y + LINE - value * (LINE - 3) / most:.1f}"]
                    last = value
                points.append(f"{LEFT + WIDTH},{y + LINE}")
                text(30, 9, trace.tracks[counter][0], colour="#777")
                out.append(f'<polygon points="{" ".join(points)}" fill="#9fc5a8" stroke="#5d9a6b" stroke-width=".5"/>')
                y += LINE
            y += GAP
    shown = {s[2] for lane in trace.slices.values() for s in lane}
    used = {what: colour for what, colour in COLOURS.items() if what in shown and what != "recv"}
    legend = "".join(f'<rect x="{LEFT + 130 * i}" y="6" width="10" height="10" fill="{colour}"/>'
                     f'<text x="{LEFT + 14 + 130 * i}" y="15" font-size="10" fill="#333">{what}</text>'
                     for i, (what, colour) in enumerate(used.items()))
    scale = f'<text x="{LEFT + WIDTH}" y="15" font-size="10" text-anchor="end" fill="#777">{width / 1e6:.0f} ms</text>'
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 8}" height="{y + 6}" '
            f'font-family="sans-serif"><rect width="100%" height="100%" fill="#fff"/>{legend}{scale}'
            + "".join(out) + "</svg>\n")


def main():
    with open(sys.argv[1], "rb") as file:
        trace = Trace(file.read())
    times = [s[0] for lane in trace.slices.values() for s in lane]
    begin = min(times) + int(float(sys.argv[3]) * 1e6 if len(sys.argv) > 3 else 0)
    width = int(float(sys.argv[4]) * 1e6 if len(sys.argv) > 4 else 100e6)
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        file.write(draw(trace, begin, width))


if __name__ == "__main__":
    main()
