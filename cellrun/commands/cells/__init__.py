"""Commands about cells, pools and quotas."""
