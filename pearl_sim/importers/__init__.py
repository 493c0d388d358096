"""What other tools recorded, read into traces, or counts where no positions were recorded: one file a format."""
